import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from examples.textbook import ports
from tests.helpers import run_python
from tests.looping import for_each

from transparity.presets import departures, preset
from transparity_conformance import assert_conforms
from transparity_conformance.checking.command import check_command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/textbook"
NAME = "attention_is_all_you_need"
FILES = {"numpy": NAME, "pytorch": f"{NAME}_pytorch", "jax": f"{NAME}_jax"}
BUILDS = {"numpy": ports.build_numpy, "pytorch": ports.build_pytorch, "jax": ports.build_jax}

FROM_FRAMEWORKS = {"linear", "layer_norm", "softmax"}
"""Functions of the NumPy file that PyTorch and JAX provide."""


def test_the_configuration_is_the_paper() -> None:
    assert departures(ports.PAPER) == []


@pytest.mark.parametrize("framework", ["numpy", "pytorch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_textbook_file_agrees_with_the_reference(framework: str) -> None:
    assert_conforms(BUILDS[framework], config=ports.PAPER)


def parts(framework: str) -> list[str]:
    """Return the functions, classes and methods of a file in the order of their last lines, in snake case."""
    tree = ast.parse((FOLDER / f"{FILES[framework]}.py").read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = [node.name for node in sorted(found, key=lambda node: node.end_lineno or 0)]
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names]


@for_each("framework", ["pytorch", "jax"])
def test_the_three_files_have_the_same_parts_in_the_same_order(framework: str) -> None:
    own = {"__init__", "forward", "__call__"}
    theirs = [name for name in parts(framework) if name not in own]
    assert theirs == [name for name in parts("numpy") if name not in FROM_FRAMEWORKS]


EXAMPLES = ROOT / "examples/checks"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if not path.name.startswith("test_"))[::-1]
PATHS = os.pathsep.join(sys.path)
COMPILER = shutil.which("cc")


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_that_only_rounding_differs(name: str) -> None:
    ended = run_python(EXAMPLES / name, PYTHONPATH=PATHS)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("Only rounding differs")


def test_the_example_of_a_test_passes() -> None:
    ended = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / "test_port.py", PYTHONPATH=PATHS)
    assert ended.returncode == 0, ended.stdout
    assert "1 passed" in ended.stdout


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
