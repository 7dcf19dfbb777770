import linecache
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Operation


def named(operations: list[Operation], name: str) -> list[Operation]:
    return [each for each in operations if name in each.name]


def texts(operations: list[Operation], file: str) -> list[str]:
    assert all(each.source is not None and each.source.file == file for each in operations)
    return [linecache.getline(file, each.source.line).strip() for each in operations if each.source is not None]


def reached(operations: list[Operation], last: Operation) -> set[int]:
    """Return the indices of all operations whose values flow into `last`."""
    found: set[int] = set()
    todo = list(last.inputs)
    while todo:
        if (index := todo.pop()) not in found:
            found.add(index)
            todo += operations[index].inputs
    return found


def is_same(found: Any, expected: Any, dtype: str = "float32") -> bool:
    """Return whether half of the digits of `dtype` agree; rounding changes fewer digits."""
    given, wanted = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    allowed = np.sqrt(np.finfo(dtype).eps) * np.abs(wanted[np.isfinite(wanted)]).max()
    with np.errstate(invalid="ignore"):  # −∞ minus itself
        near = np.abs(given - wanted) <= allowed
    return given.shape == wanted.shape and bool(np.all((given == wanted) | near))
