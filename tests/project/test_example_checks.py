"""The examples that check ports: each script agrees and ends with 0; with a wrong line in it, it is found and named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from transparity_conformance import check

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/checks"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))

WRONG = {
    "torch_module.py": ("x.shape[-1] ** 0.5", "key.shape[-1] ** 0.5", "attention-scale"),
    "flax_module.py": ("epsilon=config.norm_eps, ", "", "norm-eps"),
}
"""A line of an example, what people write in its place, and the cause."""


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


def test_every_example_is_on_its_page() -> None:
    page = (ROOT / "docs/examples.md").read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f"`examples/checks/{path.name}`" not in page] == []
