"""The three columns mirror each other: a reader lays the same file of each side by side and reads across."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COLUMNS = {
    "numpy": ROOT / "reference/transparity_numpy",
    "pytorch": ROOT / "backends/transparity_pytorch",
    "flax": ROOT / "backends/transparity_flax",
}
MIRRORED = [
    "masks",
    "embeddings",
    "positions",
    "normalization",
    "attention",
    "feed_forward",
    "layers",
    "head",
    "precision",
    "transformer",
    "loss",
    "dropout",
    "rounding",
    "differentiation",
    "optimization",
    "cache",
    "decoding",
    "generation",
    "beams",
]
WITHOUT_TWIN = {
    "numpy": {"functional", "spreading"},  # what the frameworks bring along; NumPy uses the threads that it is given
    "pytorch": {"parameters", "packing"},  # their own names and orientations; PyTorch packs weights if it is asked to
    "flax": {"parameters", "packing", "spreading"},  # XLA computes on the devices, and by the weights, that it is given
}


def names(column: str, file: str) -> list[str]:
    """The public functions and classes of a file, in order. What has its weights in it is a class in the frameworks
    and a function in NumPy: `EncoderLayer` goes by `encoder_layer`."""
    tree = ast.parse((COLUMNS[column] / f"{file}.py").read_text())
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in defined if not name.startswith("_")]


@pytest.mark.parametrize("file", MIRRORED)
@pytest.mark.parametrize("column", ["pytorch", "flax"])
def test_a_file_holds_the_same_names_in_the_same_order(column: str, file: str) -> None:
    specified = names("numpy", file)
    assert specified, f"{file}.py of the reference defines nothing"
    assert names(column, file) == specified


@pytest.mark.parametrize("column", COLUMNS)
def test_a_column_holds_the_mirrored_files_and_no_others(column: str) -> None:
    files = {file.stem for file in COLUMNS[column].glob("*.py")} - {"__init__"}
    assert files == {*MIRRORED, "port", "harness"} | WITHOUT_TWIN[column]
