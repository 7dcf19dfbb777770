"""How a mistake is planted: one file of a column with its text changed, in a backend beside the right one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import transparity_conformance.bench
import transparity_conformance.claims.generation
import transparity_conformance.claims.independent
import transparity_conformance.claims.layers
import transparity_conformance.claims.loss
import transparity_conformance.claims.normalization
import transparity_conformance.claims.optimization
import transparity_conformance.oracle
from transparity.backend import Backend
from transparity_conformance.backends import REFERENCE, backend

REFERENCE_COLUMN = "transparity"

FILES = (
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
)
"""The files that every column has."""


def column_path(column: str) -> Path:
    """The folder of a column."""
    spec = importlib.util.find_spec(column)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent


def _belongs(column: str, module: str) -> bool:
    """Whether a module is the column's own: of the reference, not the contract, which every column shares."""
    package, _, name = module.partition(".")
    return package == column and (column != REFERENCE_COLUMN or name in (*FILES, "functional", "port"))


@contextmanager
def planted(column: str, file: str, source: str) -> Iterator[Backend]:
    """The backend of `column` with the text of one `file` replaced by `source`; the right one is back afterwards."""
    right = {name: module for name, module in sys.modules.items() if _belongs(column, name)}
    for name in right:
        del sys.modules[name]
    try:
        importlib.import_module(column)
        module = types.ModuleType(f"{column}.{file}")
        sys.modules[module.__name__] = module
        # Imported by the file itself, what it imports in turn must find this module, not the right one.
        exec(compile(source, str(column_path(column) / f"{file}.py"), "exec"), module.__dict__)
        build: Backend = importlib.import_module(f"{column}.port").build
        yield build
    finally:
        for name in [name for name in sys.modules if _belongs(column, name)]:
            del sys.modules[name]
        sys.modules.update(right)


@contextmanager
def as_reference(build: Backend) -> Iterator[None]:
    """While it is entered, `build` is the reference that every oracle asks."""

    def found(name: str) -> Backend:
        return build if name == REFERENCE else backend(name)

    claims = transparity_conformance.claims
    askers = [transparity_conformance.bench, claims.generation, claims.independent, claims.layers, claims.loss]
    with ExitStack() as stack:
        for asker in (*askers, claims.normalization):
            stack.enter_context(patch.object(asker, "backend", found))
        wrong = sys.modules[f"{REFERENCE_COLUMN}.transformer"].transformer
        stack.enter_context(patch.object(transparity_conformance.oracle, "transformer", wrong))
        trained = sys.modules[f"{REFERENCE_COLUMN}.optimization"].train
        stack.enter_context(patch.object(claims.optimization, "train", trained))
        stack.callback(_forget)
        _forget()
        yield


def _forget() -> None:
    """What the suite keeps of what an oracle has said."""
    for name in [name for name in sys.modules if name.startswith("transparity_conformance")]:
        for kept in vars(sys.modules[name]).values():
            if callable(forget := getattr(kept, "cache_clear", None)):
                forget()
