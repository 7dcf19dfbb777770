import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.golden.test_hostile import REFERENCE, refused
from tests.helpers import invoke, run_python
from tests.looping import for_each

import transparity
from transparity.presets import PRESETS, departures, preset
from transparity_conformance import cli
from transparity_conformance.report.report import Report

PORTS = """
import numpy as np
from transparity_numpy.port import build

def right(config, parameters):
    forward = build(config, parameters)
    return lambda **tokens: forward(**tokens)  # which offers nothing besides

def falls_on_notes(config, parameters):
    if config.architecture == "decoder":
        raise RuntimeError("no decoder")
    return right(config, parameters)
"""


@pytest.fixture
def ports(tmp_path: Path) -> Path:
    path = tmp_path / "ports.py"
    path.write_text(PORTS)
    return path


def test_presets_lists_departures_from_the_paper() -> None:
    result = invoke("presets")
    assert result.exit_code == 0
    text = " ".join(result.stdout.split())
    for name, system in PRESETS.items():
        assert f"{name} (document {system.document})" in text
        assert f'differences from "Attention Is All You Need": {"; ".join(departures(system.config))}' in text


def test_describe_shows_parameters_and_taps() -> None:
    result = invoke("describe", "notes-lm")
    assert result.exit_code == 0
    assert "self_attention.query.weight" in result.stdout and "self_attention.scores" in result.stdout


def test_describe_takes_any_configuration(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(preset("pre-norm").resized(num_decoder_layers=0, max_length=77).to_json())
    assert invoke("describe", path).exit_code == 0
    path.write_text("{")
    assert refused(invoke("describe", path)).startswith("The configuration is not JSON")
    path.write_bytes(b"\xff")
    assert refused(invoke("describe", path)) == f"{path} is not JSON: it is not UTF-8."


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["agrees", "agrees"], 0),
        (["agrees", "inconclusive"], 3),
        (["inconclusive", "diverges"], 1),
        (["diverges", "agrees"], 1),
    ],
)
def test_the_worst_of_several_presets_counts(verdicts: list[Any], code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(verdicts)
    names = list(PRESETS)[: len(verdicts)]

    def checker(*_: Any, **__: Any) -> Callable[..., Report]:
        return lambda system, progress: Report(system.name, next(answers), None)

    monkeypatch.setattr("transparity_conformance.checking.checkers.checker", checker)
    arguments = [argument for name in names for argument in ("--preset", name)]
    assert invoke("check", REFERENCE, *arguments).exit_code == code


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("--help", 0),
        ("check", 2),
        ("check my.py:build --family llama --preset notes-lm", 2),
        ("check a:b --preset x", 2),
    ],
)
def test_help_and_an_error_of_usage_import_nothing_that_they_do_not_need(line: str, code: int) -> None:
    heavy = {"numpy", "rich.console", "torch", "jax", "pytest", "transparity_conformance.checking.checkers"}
    script = (
        f"import sys\nfrom transparity_conformance.cli import main\nsys.argv = ['transparity', *{line.split()!r}]\n"
        f"try:\n    main()\nexcept SystemExit as end:\n    print('loaded', end.code, *({heavy!r} & set(sys.modules)))"
    )
    assert run_python("-c", script).stdout.splitlines()[-1] == f"loaded {code}"


def test_the_version_is_printed() -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout.strip()) == (0, transparity.__version__)


def test_a_precision_that_a_port_lacks_is_refused() -> None:
    assert "offers float64, float32, float16" in refused(
        invoke("check", REFERENCE, "--preset", "notes-lm", "--dtype", "bfloat16")
    )


@pytest.mark.parametrize(("arguments", "code", "says"), [((), 0, "agrees with"), (("--config", "missing.json"), 2, "")])
def test_a_program_reads_json_alone_from_standard_output(
    ports: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    options = ("--preset", "notes-lm", "--logits-only", "--json", "-", *arguments)
    command = [sys.executable, "-m", "transparity_conformance", "check", f"{ports}:right", *options]
    variables = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    variables["TERM"] = "xterm-256color"
    ended = subprocess.run(command, env=variables, cwd=ports.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert "\x1b" not in ended.stdout + ended.stderr and says in ended.stderr
    if code:
        assert (ended.stdout, ended.stderr) == ("", "There is no file missing.json.\n")
    else:
        assert json.loads(ended.stdout)[0]["verdict"] == "agrees"


def test_an_error_of_ours_is_one_sentence_with_a_file(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def fails(**_: Any) -> int:
        raise ZeroDivisionError("by us")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr().err
    file = Path(said.partition(" and attach ")[2].partition(",")[0])
    assert (ended.value.code, said.count("\n")) == (2, 1)
    assert "ZeroDivisionError: by us" in file.read_text(encoding="utf-8")
    file.unlink()


@pytest.mark.long
def test_an_error_on_one_preset_does_not_hide_the_others(ports: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.json"
    port = f"{ports}:falls_on_notes"
    result = invoke(
        "check", port, "--preset", "notes-lm", "--preset", "walkthrough", "--logits-only", "--json", answers
    )
    assert result.exit_code == 2
    assert result.stderr.startswith("notes-lm: build(config, parameters) raised RuntimeError: no decoder")
    assert [report["preset"] for report in json.loads(answers.read_text())] == ["walkthrough"]


def test_a_check_of_a_numpy_port_imports_no_framework(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    script = (
        "import sys\nfrom transparity_conformance.cli import app\n"
        f"for arguments in (['check', {REFERENCE!r}, '--preset', 'notes-lm'], ['export', 'notes-lm', {str(folder)!r}],"
        f" ['compare', {str(folder)!r}, {str(folder / 'expected.safetensors')!r}]):\n"
        "    try:\n        app(arguments)\n    except SystemExit as end:\n        assert not end.code, end.code\n"
        "print('loaded', *({'torch', 'jax', 'flax', 'hypothesis', 'pytest'} & set(sys.modules)))"
    )
    assert run_python("-c", script).stdout.splitlines()[-1] == "loaded"


COMMAND = f"{sys.executable} -m transparity_conformance"


@for_each(
    ("line", "code", "says"),
    [
        (f"{COMMAND} describe vanilla --json - >&-", 2, "Standard output (-) is closed; give"),
        (f"PYTHONIOENCODING=ascii {COMMAND} describe notes-lm --json - | {sys.executable} -m json.tool", 0, ""),
        (f"PYTHONIOENCODING=ascii {COMMAND} presets", 0, ""),
    ],
)
def test_no_output_ends_in_a_traceback(tmp_path: Path, line: str, code: int, says: str) -> None:
    ended = subprocess.run(line, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    assert says in ended.stderr
