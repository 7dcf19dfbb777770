"""Test failing ports, invalid files and wrong arguments: one sentence, exit code 2, and no verdict."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.helpers import invoke
from tests.looping import for_each
from typer.testing import Result

from transparity.presets import preset

RIGHT = """
import os, signal, sys, time
import numpy as np
from transparity_numpy.port import build as right

def build(config, parameters):
    forward = right(config, parameters, dtype="float32")
    def port(**tokens):
        return forward(**tokens)
    return port

number = 5
"""

REFERENCE = "transparity_numpy.port:build"
LLAMA = f"{Path(__file__).parents[1] / 'check/hand_written_llama.py'}:"


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")
    assert "differs from" not in result.stdout and "agrees with" not in result.stdout
    return result.stderr.strip()


def checked(folder: Path, source: str, *options: str) -> Result:
    """Check a correct port whose file continues with `source`."""
    (folder / "port.py").write_text(RIGHT + source)
    return invoke("check", f"{folder / 'port.py'}:build", "--preset", "notes-lm", "--logits-only", *options)


def calling(does: str) -> str:
    """Return the source of a port that runs a statement in its forward pass."""
    return f"\ndef build(config, parameters):\n    def port(**tokens):\n        {does}\n    return port\n"


FAILING = (
    (calling("os._exit(0)"), "The port's process ended with the exit code 0 during forward"),
    (calling("os.kill(os.getpid(), signal.SIGSEGV)"), "The port's process was killed by SIGSEGV during forward"),
    (calling("sys.exit(0)"), "raised SystemExit: 0"),
    (calling("raise KeyboardInterrupt"), "raised KeyboardInterrupt"),
    (calling("raise type('PanicException', (BaseException,), {})('a panic')"), "raised PanicException: a panic"),
    (calling("if os.fork() == 0: time.sleep(60)\n        os._exit(4)"), "ended with the exit code 4 during forward"),
    (calling("return np.broadcast_to(np.float32(0), (10**6, 10**6))"), "its arrays have 4,000,000,000,000 bytes"),
    (calling("raise RuntimeError('no tokens')"), "forward(tokens=…) raised RuntimeError: no tokens (port.py, line 16)"),
    ("def build(config, parameters): os._exit(3)", "ended with the exit code 3 during build(config, parameters)"),
    ("def build(config, parameters): sys.exit(0)", "build(config, parameters) raised SystemExit: 0"),
    ("def build(): pass", "port.py:build takes 0 arguments; expected load(folder) with one argument, or build("),
    (
        "from transparity_numpy.port import build as right\ndef build(config, parameters): return right(config)",
        "required positional argument: 'parameters' (port.py, line 14)",
    ),
    (
        "def build(config, parameters): raise RuntimeError('no weights\\nfor you.')",
        "build(config, parameters) raised RuntimeError: no weights for you",
    ),
    ("class Panic(BaseException): pass\nraise Panic", "cannot be imported: Panic"),
    ("os._exit(0)", "The port's process ended with the exit code 0 during loading the port"),
    ("sys.exit(1)", "cannot be imported: SystemExit"),
    ("import no_such_module\n", "cannot be imported: No module named 'no_such_module' "),
    ("x = 1\n1 / 0\n", "cannot be imported: ZeroDivisionError: division by zero (port.py, line 14)."),
    ("def build(:\n", "cannot be imported: SyntaxError: invalid syntax (line 13)."),
    ("\0", "cannot be imported: "),
)
"""Code appended to the correct port's file, and a part of the error message."""


@pytest.mark.parametrize(("source", "says"), FAILING)
def test_a_port_that_fails_is_one_sentence(tmp_path: Path, source: str, says: str) -> None:
    assert says in refused(checked(tmp_path, source))


@for_each(
    ("arguments", "says"),
    [
        (["describe", "translaton"], "There is no preset 'translaton'; did you mean 'translation'?"),
        (["describe", "/"], "/ is not the name of a preset; expected a preset, or a configuration in a file"),
        (["describe", "gpt"], "There is no preset 'gpt'"),
        (["describe", "no.json"], "There is no file no.json."),
        (["compare", "no-bundle", "no-file"], "no-bundle is not a folder; expected a bundle"),
        (["describe"], "describe needs either a PRESET or --fields"),
        (["describe", "gpt2", "--fields"], "describe needs either a PRESET or --fields"),
        (["describe", "gpt2", "--json", "."], ". cannot be written"),
        (["export", "gpt", "folder"], "There is no preset 'gpt'"),
        (["export"], "export needs a PRESET and a DIR"),
        (["export", "--family", "gpt2"], "--family NAME and --as-hub DIR need each other"),
        (["export", "translation", "--as-hub", "x"], "--family NAME and --as-hub DIR need each other"),
        (["export", "--family", "gpt7", "--as-hub", "x"], "There is no family 'gpt7'; the nearest family is gptj"),
        (["adapt", "port.py:build"], "adapt needs the model's configuration; give exactly one"),
        ([], "check needs either a PORT or --command; give exactly one of the two."),
        ([REFERENCE, "--command", "true"], "check needs either a PORT or --command; give exactly one of the two."),
        ([REFERENCE, "--preset", "gpt"], "There is no preset 'gpt'"),
        ([REFERENCE, "--preset", "my.json"], "my.json is not the name of a preset; give a configuration"),
        ([REFERENCE, "--config", "no.json"], "There is no file no.json."),
        ([REFERENCE, "--json", "/no/such/folder/x.json"], "/no/such/folder/x.json cannot be written"),
        ([REFERENCE, "--preset", "notes-lm", "--length", "4096"], "--length needs a model with a large max_length"),
        (["--command", "true", "--config", "c.json", "--length", "4096"], "--length needs a PORT"),
        (["--command", "true", "--audit"], "--audit builds a PORT many times"),
        ([REFERENCE, "--quick", "--audit"], "--quick compares only the forward pass of a PORT"),
        ([REFERENCE, "--quick", "--against", "transformers"], "--against REFERENCE needs a PORT"),
        (
            ["--command", "true", "--adapter", "a"],
            "--adapter needs a PORT that is a model in Python; a --command reads",
        ),
        ([REFERENCE, "--by-layer"], "--by-layer and --layers check each layer of a checkpoint"),
        ([REFERENCE, "--head", "pooled"], "--head needs --checkpoint"),
        ([REFERENCE, "--checkpoint", "c", "--preset", "notes-lm"], "--checkpoint needs a PORT"),
        ([REFERENCE, "--checkpoint", "c", "--config", "c.json"], "--checkpoint needs a PORT"),
        (["--command", "true", "--checkpoint", "c"], "--checkpoint needs a PORT"),
        (["a.py:b", "--family", "llama", "--adapter", "no.toml"], "There is no file no.toml."),
        (["a.py:b", "--against", "transformers", "--family", "llama"], "--against REFERENCE takes a model from"),
        (["a.py:b", "--inputs", "inputs.py"], "--against REFERENCE needs a PORT, and allows only"),
        (["a.py:b", "--json", "x", "--html", "./x"], "x is given for two files"),
        (["a.py:b", "--json", "-", "--html", "-"], "- is given for two files"),
        (
            ["a.py:b", "--family", "olmo3"],
            "There is no family 'olmo3'; the nearest family is olmoe. Families: bart, bert",
        ),
        (
            ["a.py:b", "--family", "llama", "--set", "layers=6"],
            "--set was given 'layers=6'; expected name=value",
        ),
        (
            ["a.py:b", "--preset", "notes-lm", "--set", "layers=6"],
            "--set changes fields of a family's small model",
        ),
        ([REFERENCE, "--loss"], "--loss can only be given with --command"),
        (
            [REFERENCE, "--gradients"],
            (
                "--gradients can only be given with --command; leave this out, because all methods of a PORT are "
                "compared anyway."
            ),
        ),
        (
            ["model.onnx", "--ranks", "2"],
            "--ranks needs a PORT that is a model in Python, or a --command; model.onnx is",
        ),
        ([LLAMA + "load", "--family", "gpt7"], "There is no family 'gpt7'; the nearest family is gptj"),
        ([LLAMA + "load", "--family", "llama", "--preset", "translation"], "--family needs a PORT"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(
    tmp_path: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [] if arguments[:1] and arguments[0] in ("adapt", "compare", "describe", "export") else ["check"]
    assert refused(invoke(*command, *arguments)).startswith(says)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("adapt {}:Missing --family llama", "{} has no 'Missing'"),
        ("check {}:nothing", "{} has no 'nothing'; expected a function nothing(config, parameters) there."),
        ("check {}:number", "'number' of {} is 5; expected a function number(config, parameters)."),
        ("check {}", "The port is '{}'; expected file.py:NAME or package.module:NAME, such as my.py:load."),
        ("check {}:", "The port is '{}:'; expected"),
        ("check {}x.py:build", "There is no file {}x.py; expected a Python file"),
        ("check no.such:build", "There is no module 'no.such' in this folder, and no installed package has this name."),
        ("check json.no:build", "There is no module 'json.no' in this folder, and no installed package has this name."),
        ("check ..:build", ".. cannot be imported: "),
        (
            f"check {LLAMA}load",
            f"{LLAMA}load takes one argument, so it must be a loader load(folder); add --family NAME or",
        ),
        (f"check {LLAMA}build --family llama", "--family needs load(folder)"),
        (f"check {LLAMA}neither --family llama", f"{LLAMA}neither takes 3 arguments; expected load(folder) with one"),
        (f"check {LLAMA}load_nothing --family llama", "load(folder) returned None; expected a model, or a function"),
        (f"check {LLAMA}load_what_is_not_there --family llama", "load(folder) raised FileNotFoundError"),
    ],
)
def test_a_port_that_cannot_be_loaded_is_one_sentence(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("port.py").write_text(RIGHT)
    assert refused(invoke(*line.format("port.py").split(" "))).startswith(says.format("port.py"))


@for_each("arguments", [["check", REFERENCE, "--dtype", "int8"], ["no-such-command"], ["check", "--no-such"]])
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_a_configuration_in_place_of_a_checkpoint_is_named_and_vice_versa(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    message = refused(invoke("check", REFERENCE, "--config", tmp_path / "config.json"))
    assert "a Hugging Face config.json belongs to --checkpoint" in message
    (tmp_path / "config.json").write_text(preset("notes-lm").to_json())
    assert "already imported; pass it as --config" in refused(invoke("check", REFERENCE, "--checkpoint", tmp_path))


def test_a_port_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    source = calling("import subprocess; subprocess.Popen(['sleep', '777']); time.sleep(777)")
    begin = time.monotonic()
    said = refused(checked(tmp_path, source, "--timeout", "1.5"))
    assert "The port gave no answer to forward within 1.5 s and was stopped" in said
    assert time.monotonic() - begin < 30


def test_a_port_that_dies_late_ends_the_check_with_what_was_known(tmp_path: Path) -> None:
    source = """
def build(config, parameters):
    forward = right(config, parameters, dtype="float32")
    def port(**tokens):
        return forward(**tokens)["logits"]
    port.step = lambda *args, **named: os._exit(0)
    return port
"""
    assert refused(checked(tmp_path, source)) == (
        "The port's process ended with the exit code 0 during step; run the port without the checker to see why. "
        "Before this error, the forward pass was compared: it agrees."
    )


@pytest.mark.parametrize(
    "source",
    [
        "os.close(1); os.close(2); sys.stdout = sys.stderr = None",
        (
            "print('differs from')\nimport warnings; warnings.simplefilter('error')\n"
            "np.seterr(divide='raise', invalid='raise'); os.environ.clear(); os.chdir('/')"
        ),
    ],
)
def test_changes_of_its_own_process_do_not_reach_the_verdict(tmp_path: Path, source: str) -> None:
    ended = checked(tmp_path, source)
    assert (ended.exit_code, ended.stderr.count("Traceback")) == (0, 0), ended.stderr
    assert "agrees with" in ended.stdout
    assert "differs from" not in ended.stdout


def test_a_wrong_port_that_patches_numpy_still_diverges(tmp_path: Path) -> None:
    source = """
np.abs = np.max = lambda *args, **named: np.float64(0)
def build(config, parameters):
    forward = right(config, parameters, dtype="float32")
    return lambda **tokens: 1.01 * forward(**tokens)["logits"]
"""
    assert checked(tmp_path, source, "--budget", "0").exit_code == 1
