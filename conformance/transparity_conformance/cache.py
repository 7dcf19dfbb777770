"""A cache of results in the user's cache folder. The key of a result is a hash of everything that affects the result.

Only the command uses the cache: a program that calls the function `check` may have changed the reference before the
call.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import os
import platform
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from transparity_conformance.threads import THREADS

LARGEST = 2**28
"""The largest total size of the cache in bytes; a preset needs about 8 MB, and a Flax port's compiled code 2 MB."""

LARGEST_FILE = 2**23
"""The largest total size in bytes of the arrays of a cached result."""

ROOTS = (
    "transparity",
    "transparity_numpy",
    *(f"transparity_conformance/{package}" for package in ("oracle", "report", "storage")),
)
"""The folders of the code that affects cached results; import-linter lets the oracle import only these folders."""

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
VARIABLE = "TRANSPARITY_CACHE"
"""The environment variable that names another cache folder; an empty variable turns off the cache."""

Part = str | bytes | np.ndarray | Mapping[str, Any]


def user_folder() -> Path | None:
    """Return the folder that `TRANSPARITY_CACHE` names, or else the user's cache folder. Return None if the variable is
    empty, or if the user's cache folder is unknown."""
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
    """Return a hash of everything about the machine that affects rounding, such as the processor and NumPy's build."""
    build = json.dumps(np.show_config(mode="dicts"), default=str)
    threads = json.dumps([os.environ.get(name) for name in THREADS] + [os.cpu_count()])
    return digest(build, np.__version__, threads, platform.platform(), platform.machine(), sys.version)


def folders() -> list[Path]:
    packages = (name.partition("/") for name in ROOTS)
    return [Path(str(importlib.import_module(name).__file__)).parent / inner for name, _, inner in packages]


def sources() -> str:
    found: list[Part] = []
    for folder in folders():
        files = (path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".json", ".toml"))
        found += [part for path in files for part in (str(path.relative_to(folder)), path.read_bytes())]
    return digest(*found)


QUICKLY = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
"""Flags that turn off the slow passes of XLA: small models compile three times as fast, but run more slowly."""

KNOW_FLAGS = ("0.10.",)
"""The starts of the jaxlib versions that know the flags `QUICKLY`; jaxlib ends the process if a flag is unknown."""


def quickly() -> dict[str, str]:
    """Return environment variables that turn off XLA's slow passes; an empty dict for an untested version of jaxlib."""
    try:
        is_known = version("jaxlib").startswith(KNOW_FLAGS)
    except PackageNotFoundError:
        is_known = False
    return {"XLA_FLAGS": " ".join(QUICKLY)} if is_known else {}


def compiled() -> dict[str, str]:
    """Return environment variables that make JAX cache compiled code in a folder for this kind of machine."""
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
    """Return the cached JSON value with the key `identity`, or compute and cache the value. Without an `identity`, or
    outside of the context `keeping`, only compute the value."""
    return _kept(identity, ".json", compute, lambda value: json.dumps(value).encode(), json.loads)


def kept_arrays(identity: str | None, compute: Callable[[], Arrays]) -> Arrays:
    """Return the cached arrays with the key `identity`, or compute and cache the arrays, like `kept`. Arrays with more
    than `LARGEST_FILE` bytes are not cached."""
    return _kept(identity, ".arrays", compute, _as_bytes, load)


def _as_bytes(arrays: Arrays) -> bytes | None:
    if sum(value.nbytes for value in arrays.values()) > LARGEST_FILE:
        return None
    return save({name: np.ascontiguousarray(value) for name, value in arrays.items()})


def _kept(
    identity: str | None,
    ending: str,
    compute: Callable[[], T],
    write: Callable[[T], bytes | None],
    read: Callable[[bytes], T],
) -> T:
    where = _KEEPING.get()
    if where is None or identity is None:
        return compute()
    file = where / f"{identity}{ending}"
    with contextlib.suppress(OSError, ValueError, SafetensorError):  # the file does not exist, or is malformed
        content = file.read_bytes()
        if content[:CHECKSUM] == _checksum(content[CHECKSUM:]):
            return read(content[CHECKSUM:])
    found = compute()
    if (made := write(found)) is not None:
        _write(file, made)
    return found


CHECKSUM = 20
"""The number of bytes of the checksum at the start of a file, which shows whether the file is complete."""


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=CHECKSUM).digest()


def _write(file: Path, content: bytes) -> None:
    """Write a checksum and `content` to a temporary file, and rename this file to `file`, so that no process reads an
    incomplete file. Ignore errors of the operating system."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=file.parent, suffix=".part")
        with os.fdopen(number, "wb") as part:
            part.write(_checksum(content) + content)
        Path(name).replace(file)


def shrink(base: Path, largest: int = LARGEST) -> None:
    """Delete the oldest files of the cache until at most `largest` bytes remain; keep files that the cache did not
    write."""
    with contextlib.suppress(OSError):
        endings = "json", "arrays", "part"
        paths = [*(path for each in endings for path in base.glob(f"oracle/*/*.{each}")), *base.glob("jax/*/*")]
        status = [(path.stat(), path) for path in paths]
        files = [(it.st_mtime, it.st_size, path) for it, path in status if stat.S_ISREG(it.st_mode)]
        size = sum(size for _, size, _ in files)
        for _, freed, path in sorted(files):
            if size <= largest:
                break
            path.unlink(missing_ok=True)
            size -= freed
