"""Read untrusted safetensors files: check names, shapes and dtypes before reading any data."""

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - adds the dtype bfloat16 to NumPy, which safetensors needs
import msgspec
import numpy as np
from safetensors import safe_open

from transparity.errors import shown
from transparity.limits.files import read_header
from transparity.limits.lazy import Lazy
from transparity.text import reason
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.checkpoints.reading import UNREADABLE

Shapes = Mapping[str, tuple[int, ...]]

FLOATS = ("F64", "F32", "F16", "BF16")
INTEGERS = ("I32", "I64")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """The entry of a tensor in the header. The safetensors library checks the values."""

    data_offsets: Any = None
    dtype: Any = None
    shape: Any = None


def opened(path: Path) -> Any:
    """Open a file with the safetensors library, which compares the header with the size of the file."""
    _, entries = read_header(path, BundleError)
    try:
        msgspec.convert(entries, dict[str, _Entry])
        return safe_open(path, framework="numpy")
    except (msgspec.ValidationError, *UNREADABLE) as error:
        raise BundleError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None


def read_tensors(
    path: Path, expected: Shapes, dtypes: Collection[str], *, optional: bool = False, integers: Collection[str] = ()
) -> Lazy:
    """Return the tensors of a file; a tensor is loaded when it is used. Tensors in float16 or bfloat16 become float32.
    `expected` has the shapes of all allowed tensors, some of which may be missing if `optional` is true. Tensors in
    `integers` must have a dtype in `INTEGERS`, and all others a dtype in `dtypes`."""
    file = opened(path)
    found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    for name, tensor in found.items():
        _check(path, name, tensor, expected, INTEGERS if name in integers else dtypes)
    for name in () if optional else expected:
        if name not in found:
            raise BundleError(f"{path} has no tensor {name!r}; expected it with the shape {list(expected[name])}.")

    def read(name: str) -> np.ndarray:
        value: np.ndarray = file.get_tensor(name)
        return value.astype(np.float32) if value.dtype.itemsize == 2 else value

    return Lazy(found, read)


def _check(path: Path, name: str, tensor: Any, expected: Shapes, dtypes: Collection[str]) -> None:
    if name not in expected:
        close = difflib.get_close_matches(name[:200], expected, 1)
        hint = f"; the nearest name is {close[0]!r}" if close else ""
        raise BundleError(f"{path} has the unexpected tensor {shown(name)}{hint}.")
    if (dtype := tensor.get_dtype()) not in dtypes:
        raise BundleError(f"{name!r} of {path} has the dtype {shown(dtype)}; expected {' or '.join(dtypes)}.")
    if tuple(shape := tensor.get_shape()) != tuple(expected[name]):
        raise BundleError(f"{name!r} of {path} has the shape {shown(shape)}; expected {list(expected[name])}.")
