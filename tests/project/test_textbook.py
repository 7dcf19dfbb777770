"""The textbook files agree with the reference and with each other, and a wrong line in them is found."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path

import pytest
from examples.textbook import ports
from tests.looping import for_each

from transparity.presets import departures
from transparity_conformance import assert_conforms

FOLDER = Path(__file__).parents[2] / "examples/textbook"
NAME = "attention_is_all_you_need"
FILES = {"numpy": NAME, "pytorch": f"{NAME}_pytorch", "jax": f"{NAME}_jax"}
BUILDS = {"numpy": ports.build_numpy, "pytorch": ports.build_pytorch, "jax": ports.build_jax}

FROM_FRAMEWORKS = {"linear", "layer_norm", "softmax"}
"""Functions of the NumPy file that PyTorch and JAX provide."""

WRONG = {
    "causal-missing": (r" & causal_mask\(target.shape\[1\]\)", ""),
    "attention-scale": (r"query.shape\[-1\] \*\* 0.5", "(query.shape[1] * query.shape[-1]) ** 0.5"),
    "residual-source": (r'(feed_forward_norm(\(|"\], ))x \+ ', r"\1"),
}
"""For each cause, a pattern that matches a line in all three files, and a common mistake in its place."""


def test_the_configuration_is_the_paper() -> None:
    assert departures(ports.PAPER) == []


@pytest.mark.parametrize("framework", ["numpy", "pytorch", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_textbook_file_agrees_with_the_reference(framework: str) -> None:
    assert_conforms(BUILDS[framework], config=ports.PAPER)


@pytest.mark.slow
@pytest.mark.parametrize("cause", WRONG)
@pytest.mark.parametrize("framework", BUILDS)
def test_a_wrong_line_is_found(framework: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, name = (FOLDER / f"{FILES[framework]}.py").read_text(encoding="utf-8"), FILES[framework]
    wrong, count = re.subn(*WRONG[cause], source)
    assert count
    (tmp_path / f"{name}.py").write_text(wrong, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, tmp_path / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, f"examples.textbook.{name}", module)
    with pytest.raises(AssertionError, match=cause):
        assert_conforms(BUILDS[framework], config=ports.PAPER)


def parts(framework: str) -> list[str]:
    """Return the functions, classes and methods of a file in the order of their last lines, with NumPy's spelling."""
    tree = ast.parse((FOLDER / f"{FILES[framework]}.py").read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names = [node.name for node in sorted(found, key=lambda node: node.end_lineno or 0)]
    return [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names]


@for_each("framework", ["pytorch", "jax"])
def test_the_three_files_have_the_same_parts_in_the_same_order(framework: str) -> None:
    own = {"__init__", "forward", "__call__"}
    theirs = [name for name in parts(framework) if name not in own]
    assert theirs == [name for name in parts("numpy") if name not in FROM_FRAMEWORKS]
