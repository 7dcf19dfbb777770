"""The scripts in examples/checks end with 0; with a wrong line, the check finds and names the mistake."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from transparity.presets import preset
from transparity_conformance import check
from transparity_conformance.checking.command import check_command

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/checks"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))[::-1]
COMPILER = shutil.which("cc")

WRONG = {
    "torch_module.py": ("x.shape[-1] ** 0.5", "key.shape[-1] ** 0.5", "attention-scale"),
    "flax_module.py": ("epsilon=config.norm_eps, ", "", "norm-eps"),
    "mlx_model.py": ("x.shape[-1] ** -0.5", "q.shape[-1] ** -0.5", "attention-scale"),
}
"""For each example, a line, a common mistake in its place, and the cause."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_that_only_rounding_differs(name: str) -> None:
    ended = run(f"examples/checks/{name}")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Only rounding differs")


def test_the_example_of_a_test_passes() -> None:
    ended = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "examples/checks/test_port.py")
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_in_an_example_is_named(name: str) -> None:
    right, wrong, cause = WRONG[name]
    source = (EXAMPLES / name).read_text(encoding="utf-8")
    assert right in source
    module = ModuleType("example")
    exec(compile(source.replace(right, wrong), name, "exec"), module.__dict__)
    report = check(module.build, preset="notes-lm")
    assert report.verdict == "diverges"
    assert report.faults[0].causes[0].mistake == cause


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler")
@pytest.mark.parametrize(
    ("right", "wrong", "cause"), [("", "", None), ("sqrtf(width)", "sqrtf(head)", "attention-scale")]
)
def test_a_program_in_c_agrees_and_a_wrong_line_in_it_is_named(
    right: str, wrong: str, cause: str | None, tmp_path: Path
) -> None:
    assert COMPILER
    source = (EXAMPLES / "port.c").read_text(encoding="utf-8")
    assert right in source
    (tmp_path / "port.c").write_text(source.replace(right, wrong) if right else source, encoding="utf-8")
    command = [COMPILER, "-O2", "-Wall", "-Wextra", "-Werror", "-o", "port", "port.c", "-lm"]
    subprocess.run(command, cwd=tmp_path, check=True)
    report = check_command(f"{tmp_path}/port {{bundle}} {{actual}}", "notes-lm", preset("notes-lm").resized())
    assert report.verdict == ("diverges" if cause else "agrees")
    assert [fault.causes[0].mistake for fault in report.faults[:1]] == ([cause] if cause else [])


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs/checking.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.*") if f"`examples/checks/{path.name}`" not in page] == []
