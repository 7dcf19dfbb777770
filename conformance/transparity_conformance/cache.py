"""Results that stay in the user's cache folder between runs, by a hash of everything that they depend on.

Only the command keeps results: a process that runs other people's code may have changed the reference.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

LARGEST = 2**28
"""Bytes of all kept files; the oldest are deleted. A preset keeps 0.3 MB, and the code of a port in Flax takes 2 MB."""

ROOTS = ("transparity", "transparity_numpy", "transparity_conformance/oracle", "transparity_conformance/report")
"""The sources that kept results depend on; import-linter shows that the oracle imports no others."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Variables that change how a library sums."""

T = TypeVar("T")
VARIABLE = "TRANSPARITY_CACHE"
"""Names another folder; empty: keep nothing."""

Part = str | bytes | np.ndarray | Mapping[str, Any]


def user_folder() -> Path | None:
    """Return `TRANSPARITY_CACHE`, or this project's folder among the user's caches; None if empty or unknown."""
    if (named := os.environ.get(VARIABLE)) is not None:
        return Path(named).absolute() if named else None
    try:
        if sys.platform == "darwin":
            base = Path.home() / "Library/Caches"
        elif sys.platform == "win32":
            base = Path(os.environ["LOCALAPPDATA"])
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except (KeyError, RuntimeError):
        return None
    return base / "transparity" if base.is_absolute() else None


def digest(*parts: Part) -> str:
    """Return a hash of texts and arrays, with their names, dtypes and shapes."""
    found = hashlib.blake2b(digest_size=20)
    for part in parts:
        _add(found, part)
    return found.hexdigest()


def _add(found: Any, part: Any) -> None:
    if isinstance(part, Mapping):
        found.update(f"{len(part)} names;".encode())
        for name in sorted(part):
            _add(found, name)
            _add(found, part[name])
        return
    if isinstance(part, np.ndarray):
        found.update(f"{part.dtype.str}{part.shape};".encode())
        found.update(np.ascontiguousarray(part).data)
        return
    content = part.encode() if isinstance(part, str) else part
    found.update(f"{len(content)};".encode() + content)


@functools.cache
def machine() -> str:
    """Return a hash of the processor's features and of the numerical library, on which rounding depends."""
    build = json.dumps(np.show_config(mode="dicts"), default=str)
    threads = json.dumps([os.environ.get(name) for name in THREADS] + [os.cpu_count()])
    return digest(build, np.__version__, threads, platform.platform(), platform.machine(), sys.version)


def folders() -> list[Path]:
    """Return the folders of the sources that kept results depend on."""
    packages = (name.partition("/") for name in ROOTS)
    return [Path(str(importlib.import_module(name).__file__)).parent / inner for name, _, inner in packages]


def sources() -> str:
    """Return a hash of all files with code or data below `folders`."""
    found: list[Part] = []
    for folder in folders():
        files = (path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".json", ".toml"))
        found += [part for path in files for part in (str(path.relative_to(folder)), path.read_bytes())]
    return digest(*found)


def compiled() -> dict[str, str]:
    """Return variables with which JAX keeps compiled code, on one kind of processor; the user's own override them."""
    base = user_folder()
    if base is None:
        return {}
    return {
        "JAX_COMPILATION_CACHE_DIR": str(base / "jax" / machine()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


_KEEPING: ContextVar[Path | None] = ContextVar("_KEEPING", default=None)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Keep the results that are computed within the context, and reuse earlier ones."""
    base = user_folder()
    where = None if base is None else base / "oracle" / digest(machine(), sources())
    token = _KEEPING.set(where)
    try:
        yield
    finally:
        _KEEPING.reset(token)
        if base is not None:
            shrink(base)


def kept(identity: str | None, compute: Callable[[], T]) -> T:
    """Return the JSON value that `compute` returns, or returned for the same `identity` in an earlier run.

    Without an identity, or outside of `keeping`, it is computed.
    """
    where = _KEEPING.get()
    if where is None or identity is None:
        return compute()
    file = where / f"{identity}.json"
    try:
        found: T = json.loads(file.read_bytes())
    except (OSError, ValueError):  # not there, or cut
        found = compute()
        _write(file, json.dumps(found))
    return found


def _write(file: Path, text: str) -> None:
    """Write a file that other processes see whole or not at all; a folder that cannot be written keeps nothing."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
        with os.fdopen(number, "w") as part:
            part.write(text)
        Path(name).replace(file)


def shrink(base: Path, largest: int = LARGEST) -> None:
    """Delete the oldest kept files until they have at most `largest` bytes; other files in the folder stay."""
    with contextlib.suppress(OSError):
        paths = [*base.glob("oracle/*/*.json"), *base.glob("jax/*/*")]
        files = [(path.stat().st_mtime, path.stat().st_size, path) for path in paths if path.is_file()]
        size = sum(size for _, size, _ in files)
        for _, freed, path in sorted(files):
            if size <= largest:
                break
            path.unlink(missing_ok=True)
            size -= freed
