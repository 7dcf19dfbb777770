"""JSON values that take long to compute, cached in build/kept until anything that they depend on changes."""

import json
import platform
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from docs.site.pages import ROOT

from transparity_conformance.cache import digest

KEPT = ROOT / "build/kept"
CODE = ("reference", "backends", "conformance/transparity_conformance")
SOURCES = (".py", ".toml", ".jinja", ".txt")
LIBRARIES = ("numpy", "torch", "jax", "flax", "safetensors")


def kept(name: str, inputs: Iterable[bytes], make: Callable[[], Any], folder: Path = KEPT) -> Any:
    """Return the cached value `name`; compute it by `make` if `inputs` or the project's code have changed. Delete older
    values of the same name."""
    path = folder / f"{name}-{digest(code_digest(), *inputs)[:20]}"
    if not path.exists():
        text = json.dumps(make(), ensure_ascii=False)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"{name}-{'?' * 20}"):
            old.unlink()
        path.write_text(text, encoding="utf-8")
    return json.loads(path.read_text(encoding="utf-8"))


@cache
def code_digest() -> str:
    """Return a digest of the project's code and of the versions of Python and the libraries."""
    return digest_of(ROOT / folder for folder in CODE)


def digest_of(folders: Iterable[Path]) -> str:
    paths = sorted(file for folder in folders for file in folder.rglob("*") if file.suffix in SOURCES)
    files = {path.as_posix(): path.read_bytes() for path in paths}
    return digest(platform.python_version(), *map(version, LIBRARIES), files)
