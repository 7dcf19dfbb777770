"""The software that produced a report."""

from __future__ import annotations

import functools
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

LIBRARIES = ("transparity", "numpy", "torch", "jax")
PORTS = ("flax", "transformers", "equinox", "keras", "mlx", "onnxruntime")
"""Libraries that only a port imports, in a process of its own."""

ABSENT = "not installed"


def environment() -> dict[str, str]:
    """The versions of Python, of the platform, and of the libraries that are imported here."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    return found | {name: _version(name) for name in LIBRARIES if name in sys.modules}


def installed() -> dict[str, str]:
    """The versions of Python, of the platform, and of every library of interest that is installed."""
    found = environment() | {name: _version(name) for name in (*LIBRARIES, *PORTS)}
    return {name: version for name, version in found.items() if version != ABSENT}


@functools.cache  # metadata of a package with many dependencies takes milliseconds to read
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ABSENT
