"""The three columns mirror each other: a reader lays the same file of each side by side and reads across."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.looping import for_each

ROOT = Path(__file__).parents[2]
COLUMNS = {
    "numpy": ROOT / "reference/transparity_numpy",
    "pytorch": ROOT / "backends/transparity_pytorch",
    "flax": ROOT / "backends/transparity_flax",
}
MIRRORED = [
    "shapes",
    "masks",
    "normalization",
    "rotary.plain",
    "rotary.linear",
    "rotary.llama3",
    "rotary.yarn",
    "rotary.longrope",
    "rotary.tables",
    "mixers.attention",
    "mixers.latent",
    "mixers.convolution",
    "mixers.recurrence",
    "mixers.gated_delta",
    "mixers.state_space",
    "mixers.table",
    "feed_forward",
    "experts",
    "residuals",
    "layers",
    "positions.sinusoidal",
    "positions.learned",
    "positions.relative",
    "positions.alibi",
    "positions.bias",
    "positions.temperature",
    "inputs.tokens",
    "inputs.patches",
    "inputs.frames",
    "inputs.embedding",
    "heads.transform",
    "heads.logits",
    "heads.pooled",
    "heads.classes",
    "heads.table",
    "transformer",
    "arithmetic.softcap",
    "arithmetic.precision",
    "arithmetic.fused",
    "arithmetic.dropout",
    "arithmetic.rounding",
    "state.context",
    "state.cache",
    "decoding.steps",
    "decoding.generation",
    "decoding.beams",
    "training.loss",
    "training.differentiation",
    "training.optimization",
]
TABLES = {"shapes", "mixers.table"}
"""Files that only assign."""

SHARDED = ["parallel.plan", "parallel.sharding", "parallel.training", "parallel.port"]
"""Files of the frameworks' columns over several ranks, which NumPy's is not: the first has the same names in both."""

OWN_CONTENTS = {"fast.fast_linear", "port", "harness"}
"""Files that every column has, each with what its framework needs."""

WITHOUT_TWIN = {
    "numpy": {
        "arithmetic.functional",
        "fast.threads",
    },  # the frameworks' functions that NumPy lacks; one batch over several threads
    # names and orientations of the framework; kernels recorded for a GPU; larger products
    "pytorch": {"state.parameters", "decoding.replayed", "fast.graphs", "fast.fused_qkv", *SHARDED},
    # the same; a key of compiled programs; one batch over several devices
    "flax": {"state.parameters", "mixers.chunks", "fast.structure", "fast.sharding", *SHARDED},
}


MODULES = {
    "mixers.attention": {"attention_projections"},
    "mixers.recurrence": {"recurrence", "chunk_decays"},
    "state.context": {"mask"},
}
"""Names that only the frameworks have: the parameters that parts share, a chunk of a recurrence, a mask with its kind;
and in PyTorch the modules of an input or a head, `…_parts`, whose parameters NumPy is given."""


def names(column: str, file: str) -> list[str]:
    """The public functions and classes of a file, in order. A part with weights is a class in the frameworks and a
    function in NumPy: `SelfAttention` is `self_attention` there."""
    tree = ast.parse(COLUMNS[column].joinpath(*file.split(".")).with_suffix(".py").read_text())
    defined = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return [re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in defined if not name.startswith("_")]


@for_each("file", MIRRORED)
@for_each("column", ["pytorch", "flax"])
def test_a_file_holds_the_same_names_in_the_same_order(column: str, file: str) -> None:
    specified = names("numpy", file)
    assert specified or file in TABLES, f"{file}.py of the reference defines nothing"
    found = [name for name in names(column, file) if not name.endswith("_parts")]
    assert [name for name in found if name not in MODULES.get(file, ())] == specified


def test_the_plans_of_both_frameworks_hold_the_same_names_in_the_same_order() -> None:
    assert names("pytorch", SHARDED[0]) == names("flax", SHARDED[0]) == ["placed", "plan", "report"]


@for_each("column", COLUMNS)
def test_a_column_holds_the_mirrored_files_and_no_others(column: str) -> None:
    paths = [file.relative_to(COLUMNS[column]).with_suffix("") for file in COLUMNS[column].rglob("*.py")]
    files = [".".join(path.parts) for path in paths if path.name != "__init__"]
    assert set(files) == {*MIRRORED, *OWN_CONTENTS} | WITHOUT_TWIN[column]
