"""Test that the three columns have the same files, functions and arguments, and that installed backends are found."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest
from tests.looping import for_each

from transparity_conformance.oracle import backends

ROOT = Path(__file__).parents[2]
COLUMNS = {
    "numpy": ROOT / "reference/transparity_numpy",
    "pytorch": ROOT / "backends/transparity_pytorch",
    "flax": ROOT / "backends/transparity_flax",
}
TABLES = {"shapes"}
"""Files that contain only assignments."""

SHARDED = ["parallel.sharding", "parallel.training", "parallel.port"]
"""Files for several ranks, which NumPy lacks."""

OWN_CONTENTS = {"fast.fast_linear", "port", "harness"}
"""Files that every column has, with different contents."""

WITHOUT_TWIN = {
    # functions that the frameworks provide; threads for the rows of a batch
    "numpy": {"arithmetic.functional", "fast.threads"},
    # parameters of the framework; recurrences in chunks; kernels recorded for a GPU; fused matrix products
    "pytorch": {
        "state.parameters",
        "state.tied",
        "mixers.recurrence",
        "decoding.replayed",
        "fast.graphs",
        "fast.fused_qkv",
        *SHARDED,
    },
    # parameter names of the framework; a key for compiled programs; several devices for the rows of a batch
    "flax": {"state.parameters", "state.tied", "fast.structure", "fast.sharding", *SHARDED},
}


def files_of(column: str) -> set[str]:
    paths = [file.relative_to(COLUMNS[column]).with_suffix("") for file in COLUMNS[column].rglob("*.py")]
    return {".".join(path.parts) for path in paths if path.name != "__init__"}


MIRRORED = files_of("numpy") - OWN_CONTENTS - WITHOUT_TWIN["numpy"]

MODULES = {
    "mixers.attention": {"attention_projections"},
    "mixers.recurrence": {"recurrence", "chunk_decays", "in_chunks", "in_a_row"},
    "norms.norm": {"initial_gain"},
    "norms.heads": {"query_key_norms"},
    "norms.batch": {"add_statistics"},
    "heads.pooling": {"add_head_parts"},
    "state.context": {"mask"},
    "decoding.steps": {"compiled_prefill"},
    "training.optimization": {"optimizer_of", "optimizer_step"},
    "arithmetic.changes": {"dropped"},
}
"""Names that only the frameworks have, by file. These functions share parameters, return a mask with its kind, apply
given dropout masks, or are compiled. PyTorch also has functions `…_parts`, which return the modules of an input or a
head; NumPy receives the parameters of these modules."""


MODULE_ARGUMENTS = {
    "module",
    "layer",
    "model",
    "linear",
    "norm",
    "convolution",
    "projection",
    "table",
    "split",
}
"""Arguments in place of NumPy's configuration and parameters: modules, and in JAX a model that is `split`."""

DIFFERENT = {
    "flax rotary.rotary_tables": ("+keys", "angles of all positions are computed in float64 while tracing"),
    "flax positions.in_attention.query_temperature": ("+keys", "temperatures are computed in float64 while tracing"),
    "flax inputs.embedding.embed": ("+reader", "a decoder receives the shared table as an argument"),
    "pytorch transformer.stack": ("-name", "a module knows its name"),
    "flax transformer.stack": ("-name +reader", "a module knows its name; a decoder receives the shared table"),
    "pytorch transformer.transformer": (
        "+inputs +source +target +tokens +pixels",
        "inputs may be positional, as in other models; torch.export names dynamic shapes by arguments",
    ),
    "flax transformer.transformer": ("+inputs", "inputs may be positional, as in other models of the framework"),
    "mixers.attention.self_attention": ("-projections", "a subclass overrides its projections"),
    "inputs.frames.convolved": ("-stride", "the convolution is a module with its own stride"),
    "pytorch mixers.recurrence.causal_convolution": (
        "-weight -bias",
        "the convolution is a module with its own parameters",
    ),
    "pytorch arithmetic.fused.applies": (
        "+softcap +query",
        "the kernel has no softcap, and is slow for one query on a GPU",
    ),
    "flax arithmetic.fused.applies": (
        "+softcap +dtype",
        "the kernel has no softcap, and XLA lacks products of some dtypes",
    ),
    "arithmetic.fused.attention": ("-softcap", "kernels have no softcap"),
    "pytorch training.optimization.train": ("+local", "each rank may have a share of the parameters"),
    "flax training.optimization.train": ("-differentiate +loss_of +start", "parameters may be on several devices"),
    "flax training.loss.loss_and_gradients": ("+loss_of", "rows that fill several devices do not count"),
    "pytorch decoding.steps.next_logits": ("+step", "a step may be recorded for a GPU"),
    "pytorch decoding.generation.generate": ("+step", "a step may be recorded for a GPU"),
    "pytorch decoding.beams.beam_search": ("+step", "a step may be recorded for a GPU"),
}
"""Additional (+) and missing (-) arguments of a framework's functions compared with NumPy's, and the reason."""


@functools.cache
def defined(column: str, file: str) -> dict[str, ast.FunctionDef | ast.ClassDef]:
    """Return a file's public functions and classes by NumPy's name: `self_attention` for the class `SelfAttention`."""
    tree = ast.parse(COLUMNS[column].joinpath(*file.split(".")).with_suffix(".py").read_text())
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    shown = {re.sub(r"(?<!^)(?=[A-Z])", "_", node.name).lower(): node for node in found}
    return {name: node for name, node in shown.items() if not name.startswith("_")}


def names(column: str, file: str) -> list[str]:
    return list(defined(column, file))


def arguments(node: ast.FunctionDef | ast.ClassDef) -> list[str] | None:
    """Return the argument names of a function or of a module's call, or None for a class without a call. The argument
    `training` is left out, because modules store this value."""
    if isinstance(node, ast.ClassDef):
        calls = [it for it in node.body if isinstance(it, ast.FunctionDef) and it.name in ("__call__", "forward")]
        return arguments(calls[0]) if calls else None
    given = node.args
    named = [*given.posonlyargs, *given.args, *([given.vararg] if given.vararg else []), *given.kwonlyargs]
    return [it.arg for it in named if it.arg != "training" or ast.unparse(it.annotation or it) != "bool"]


def replaced(specified: list[str], found: list[str]) -> list[str]:
    """Return a framework's arguments without `device`, and without the module replacing `config` or `parameters`."""
    found = [name for name in found if name not in ("self", "config", "device")]
    begin = next((place for place, name in enumerate(specified) if name in ("config", "parameters")), None)
    rest = [name for name in specified if name not in ("config", "parameters")]
    if begin is None or len(found) == begin or found[begin] in rest[begin : begin + 1]:
        return found
    is_module = found[begin] in MODULE_ARGUMENTS
    return found[:begin] + found[begin + is_module :]


@for_each("file", sorted(MIRRORED))
@for_each("column", ["pytorch", "flax"])
def test_functions_of_a_file_have_the_same_arguments_in_the_same_order(column: str, file: str) -> None:
    found = defined(column, file)
    for name, node in defined("numpy", file).items():
        specified, given = arguments(node), arguments(found[name])
        if specified is None or given is None:
            continue  # a named tuple, or a module without its own call
        changed, _ = DIFFERENT.get(f"{column} {file}.{name}") or DIFFERENT.get(f"{file}.{name}") or ("", "")
        changes = changed.split()
        rest = [it for it in specified if it not in ("config", "parameters") and f"-{it}" not in changes]
        assert [it for it in replaced(specified, given) if f"+{it}" not in changes] == rest, name
        assert all(change[1:] in (given if change[0] == "+" else specified) for change in changes), name


@for_each("file", sorted(MIRRORED))
@for_each("column", ["pytorch", "flax"])
def test_a_file_holds_the_same_names_in_the_same_order(column: str, file: str) -> None:
    specified = names("numpy", file)
    assert specified or file in TABLES, f"the reference's {file}.py defines nothing"
    found = [name for name in names(column, file) if not name.endswith("_parts")]
    assert [name for name in found if name not in MODULES.get(file, ())] == specified


@for_each("column", ["pytorch", "flax"])
def test_a_column_holds_the_mirrored_files_and_no_others(column: str) -> None:
    assert files_of(column) == {*MIRRORED, *OWN_CONTENTS} | WITHOUT_TWIN[column]


def _missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Add a second backend whose import fails because `module` is missing."""

    def backend(name: str) -> object:
        if name == "theirs":
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return object()

    monkeypatch.setattr(
        backends, "named", lambda: {"numpy": "transparity_numpy.port:build", "theirs": "theirs.port:build"}
    )
    monkeypatch.setattr(backends, "backend", backend)
    monkeypatch.setattr(backends, "absent", backends.absent.__wrapped__)


def test_a_backend_without_its_framework_is_left_out_and_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "a_framework")
    assert backends.installed() == ["numpy"]
    assert backends.absent() == {"theirs": "it cannot be imported (No module named 'a_framework')"}


def test_a_backend_that_lacks_a_module_of_its_own_is_broken_not_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    _missing(monkeypatch, "theirs.attention")
    with pytest.raises(ModuleNotFoundError):
        backends.installed()


def test_every_backend_of_this_project_is_installed_where_it_is_tested() -> None:
    assert {"numpy", "pytorch", "flax"} <= set(backends.installed())
