"""Keys and values whose heads are repeated before anything else is done with them: the reference has each head once."""

from __future__ import annotations

import numpy as np


def unrepeated(value: np.ndarray, heads: int, shared: int) -> np.ndarray:
    """A value with an axis of `heads`, in which each of the `shared` ones is several times in a row, with each once."""
    if shared == heads or not value.size or value.min() == value.max():  # one number tells nothing
        return value
    for axis in [axis for axis, size in enumerate(value.shape) if size == heads]:
        grouped = value.reshape(*value.shape[:axis], shared, heads // shared, *value.shape[axis + 1 :])
        first = grouped.take(0, axis + 1)
        if np.array_equal(grouped, np.expand_dims(first, axis + 1).repeat(heads // shared, axis + 1)):
            return first
    return value
