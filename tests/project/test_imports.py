"""Importing a module imports no framework that it does not need; NumPy is enough for the reference."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {"torch", "jax", "flax"}


def imported_by(statement: str) -> set[str]:
    """Return the frameworks that `statement` imports in a new process."""
    script = f"import sys\n{statement}\nprint(*(name for name in {FRAMEWORKS} if name in sys.modules))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(process.stdout.split())


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import transparity", set()),
        ("import transparity_numpy.port", set()),
        ("import transparity_pytorch", set()),
        ("import transparity_flax", set()),
        ("import transparity_conformance", set()),
        ("import transparity_conformance.suite.plugin", set()),
        ("import transparity_conformance.checkpoints.importing", set()),
        ("import transparity_pytorch.port", {"torch"}),
        ("import transparity_flax.port", {"jax", "flax"}),
        ("import transparity_numpy.harness", set()),
        ("import transparity_pytorch.harness", {"torch"}),
        ("import transparity_flax.harness", {"jax", "flax"}),
    ],
)
def test_an_import_brings_no_framework_that_was_not_asked_for(statement: str, expected: set[str]) -> None:
    assert imported_by(statement) == expected


def test_a_numpy_forward_pass_brings_no_framework() -> None:
    forward = (
        "from transparity import initialize_parameters, preset\n"
        "from transparity_numpy.port import build\n"
        "config = preset('notes-lm').resized()\n"
        "build(config, initialize_parameters(config))(tokens=[[1, 2, 3]])"
    )
    assert imported_by(forward) == set()
