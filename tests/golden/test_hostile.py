import json
import time
from pathlib import Path

import pytest
from tests.helpers import invoke, table
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
LLAMA = Path(__file__).parents[1] / "check/hand_written_llama.py"


def refused(result: Result) -> str:
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1 and result.stderr.endswith(".\n")
    assert "differs from" not in result.stdout and "agrees with" not in result.stdout
    return result.stderr.strip()


def checked(folder: Path, source: str, *options: str) -> Result:
    (folder / "port.py").write_text(RIGHT + source)
    return invoke("check", f"{folder / 'port.py'}:build", "--preset", "notes-lm", "--logits-only", *options)


def calling(does: str) -> str:
    return f"\ndef build(config, parameters):\n    def port(**tokens):\n        {does}\n    return port\n"


REFUSED = table(__file__, "refused.toml")


@pytest.mark.parametrize("row", REFUSED["failing"])
def test_a_port_that_fails_is_one_sentence(tmp_path: Path, row: dict[str, str]) -> None:
    assert row["says"] in refused(checked(tmp_path, row["source"] if "source" in row else calling(row["calls"])))


@for_each(("line", "says"), REFUSED["lines"])
def test_arguments_that_do_not_fit_are_one_sentence(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("port.py").write_text(RIGHT)
    places = {"reference": REFERENCE, "llama": LLAMA}
    assert refused(invoke(*line.format(**places).split(" "))).startswith(says.format(**places))


@for_each("arguments", [["check", REFERENCE, "--dtype", "int8"], ["no-such-command"], ["check", "--no-such"]])
def test_bad_usage_exits_with_2(arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2


def test_a_configuration_in_place_of_a_checkpoint_is_named_and_vice_versa(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}))
    message = refused(invoke("check", REFERENCE, "--config", tmp_path / "config.json"))
    assert "pass a Hugging Face config.json to --checkpoint" in message
    (tmp_path / "config.json").write_text(preset("notes-lm").to_json())
    assert "already imported; pass it as --config" in refused(invoke("check", REFERENCE, "--checkpoint", tmp_path))


def test_a_port_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    source = calling("import subprocess; subprocess.Popen(['sleep', '777']); time.sleep(777)")
    begin = time.monotonic()
    said = refused(checked(tmp_path, source, "--timeout", "1.5"))
    assert "The port did not finish forward within 1.5 s and was stopped" in said
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
