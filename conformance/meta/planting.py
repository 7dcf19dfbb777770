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

from transparity.protocol import Backend, Harness
from transparity_conformance.oracle.backends import REFERENCE, backend

REFERENCE_COLUMN = "transparity_numpy"

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
    """Whether a module is the column's own, not the contract, which every column shares."""
    return module.partition(".")[0] == column


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


def harness_beside(build: Backend) -> Harness:
    """The harness of the column that `build` belongs to; of a planted one, within `planted`."""
    column = type(build).__module__.rpartition(".")[0]
    parts: Harness = importlib.import_module(f"{column}.harness")
    return parts


@contextmanager
def as_reference(build: Backend) -> Iterator[None]:
    """While it is entered, `build` is the reference of the whole suite: the backend that every oracle asks, and
    whatever the suite took from the column's modules by itself."""

    def found(name: str) -> Backend:
        return build if name == REFERENCE else backend(name)

    with ExitStack() as stack:
        for module in _suite():
            for name, value in list(vars(module).items()):
                if value is backend:
                    stack.enter_context(patch.object(module, name, found))
                elif _belongs(REFERENCE_COLUMN, home := getattr(value, "__module__", None) or ""):
                    stack.enter_context(
                        patch.object(module, name, getattr(importlib.import_module(home), value.__name__))
                    )
        stack.callback(_forget)
        _forget()
        yield


def _suite() -> list[types.ModuleType]:
    return [module for name, module in sys.modules.items() if name.startswith("transparity_conformance")]


def _forget() -> None:
    """What the suite keeps of what an oracle has said."""
    for module in _suite():
        for kept in vars(module).values():
            if callable(forget := getattr(kept, "cache_clear", None)):
                forget()
