import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import refused

from transparity.presets import preset
from transparity_conformance.checking.command import check_command
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.child import command_line, run_together

CONFIG = preset("notes-lm").resized(embed_dim=6, num_heads=2, num_decoder_layers=1)

COPY = """
import pathlib, sys
bundle, actual = map(pathlib.Path, sys.argv[1:])
right = (bundle / "expected.safetensors").read_bytes()
"""


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Report]:
    def check(script: str, timeout: float = 60) -> Report:
        path = tmp_path / "port.py"
        path.write_text(COPY + script)
        return check_command(shlex.join([sys.executable, str(path)]), "notes-lm", CONFIG, timeout=timeout)

    return check


WRONG = "actual.write_bytes(right[:-1] + b'\\x7f')\n"
PARTIAL = """
from safetensors.numpy import load_file, save_file
tensors = load_file(bundle / "expected.safetensors")
save_file({name: value for name, value in tensors.items() if name != "one/logits"}, actual)
"""


@pytest.mark.parametrize(
    ("script", "verdict", "says"),
    [
        ("actual.write_bytes(right)", "agrees", ""),
        (f"{WRONG}sys.exit(7)", "diverges", "the exit code 7"),
        (
            "actual.write_bytes(right)\nsys.exit('out of memory.')",
            "inconclusive",
            "1, with the message: out of memory.",
        ),
        ("import os\nactual.write_bytes(right)\nos.abort()", "inconclusive", "was killed by SIGABRT"),
        (PARTIAL, "inconclusive", "probe one: the port returned no logits"),
    ],
)
def test_a_program_is_judged_by_its_output_and_its_end(
    checked: Callable[..., Report], script: str, verdict: str, says: str
) -> None:
    report = checked(script)
    assert (report.verdict, report.preset) == (verdict, "notes-lm") and report.measured
    assert says in " ".join([*report.notes, *report.not_compared])
    assert says or not report.notes


GARBAGE = ("b''", "b'garbage'", "b'\\xff' * 100", "right[8:]")
UNREADABLE = "cannot be read as a safetensors file"


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("actual.write_bytes(right[:-8])", f"{UNREADABLE}: .*incomplete metadata"),
        *((f"actual.write_bytes({content})", UNREADABLE) for content in GARBAGE),
        *((f"actual.write_bytes({content})\nsys.exit(3)", f"exit code 3; .*{UNREADABLE}") for content in GARBAGE),
        ("", r"^The command .* exited normally, but wrote no actual\.safetensors"),
        ("actual.mkdir()", "is a folder; expected one safetensors file"),
    ],
)
def test_an_output_that_is_none_is_refused(checked: Callable[..., Report], script: str, says: str) -> None:
    with pytest.raises(BundleError, match=says) as raised:
        checked(script)
    assert str(raised.value).endswith(".") and "\n" not in str(raised.value)


def test_a_program_that_hangs_is_stopped_with_its_children(tmp_path: Path) -> None:
    script = tmp_path / "port.py"
    script.write_text(
        "import pathlib, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', "
        "f'import pathlib, time; time.sleep(1); pathlib.Path({str(pathlib.Path(sys.argv[2]))!r}).touch()'])\n"
        "time.sleep(600)\n"
    )
    began = time.monotonic()
    failure = run_together(f"'{sys.executable}' '{script}'", tmp_path, [(tmp_path / "actual", {})], timeout=0.5)
    assert time.monotonic() - began < 30
    assert failure.endswith("was stopped after 0.5 s.")
    time.sleep(1.2)
    assert not (tmp_path / "actual").exists(), "a child process is still running"


def test_a_program_may_print_without_end(tmp_path: Path) -> None:
    script = tmp_path / "port.py"
    script.write_text(
        "import sys\n"
        "for _ in range(2000): sys.stderr.write('x' * 1000); sys.stdout.write('y' * 1000)\n"
        "sys.exit('\\n\\x1b[31mat last\\n\\n')\n"
    )
    failure = run_together(f"'{sys.executable}' '{script}'", tmp_path, [(tmp_path / "actual", {})], timeout=60)
    assert "\x1b" not in failure
    assert failure.endswith("at last.")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "The command is empty"),
        ("'", 'The command "\'" cannot be read: no closing quotation.'),
        ("/no/such/program", "The command '/no/such/program' cannot be started: No such file or directory."),
        ("program\0", "The command 'program\\x00' cannot be started: "),
    ],
)
def test_an_invalid_command_is_refused(tmp_path: Path, command: str, message: str) -> None:
    with refused(BundleError, message):
        run_together(command, tmp_path, [(tmp_path / "actual", {})], timeout=60)


def test_the_paths_are_last_or_replace_their_placeholders() -> None:
    bundle, actual = Path("a b"), Path("c")
    assert command_line("run 'me too'", bundle, actual) == ["run", "me too", "a b", "c"]
    assert command_line("run --out={actual} {bundle}", bundle, actual) == ["run", "--out=c", "a b"]
    assert command_line("run {bundle}; rm $HOME", bundle, actual) == ["run", "a b;", "rm", "$HOME"]
