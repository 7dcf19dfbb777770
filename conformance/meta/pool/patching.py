"""A patched file in place of the installed one: the module keeps its name, so that all that imports it gets the bug."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from meta.pool.bug import Bug, PoolError


class PatchedFinder(importlib.abc.MetaPathFinder):
    """Finds the module of one file at another one."""

    def __init__(self, original: Path, patched: Path) -> None:
        self.original, self.patched = original.resolve(), patched

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self.original:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.patched, submodule_search_locations=spec.submodule_search_locations
        )


def install(bug: Bug, folder: Path) -> Path:
    """Write the patched file below `folder`, have it imported, and return it; raises if it is imported already."""
    patched = folder / bug.file
    patched.parent.mkdir(parents=True, exist_ok=True)
    patched.write_text(bug.text(), encoding="utf-8")
    if is_imported(bug.path):
        raise PoolError(f"{bug.file} was imported before it was patched.")
    sys.meta_path.insert(0, PatchedFinder(bug.path, patched))
    return patched


def is_imported(file: Path) -> bool:
    """Return whether a module of this file is imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return any(found is not None and Path(found).resolve() == file.resolve() for found in files)
