"""A batch distributed over threads. NumPy uses all cores for matrix products and one core for everything else. If a
batch has several rows, it is faster to give each thread some rows and one core."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any

import numpy as np
from numpy import ndarray as Array

_ALONE = Lock()
"""A lock while the number of threads is limited; a second call could otherwise restore the limit of the first call."""


def can_split(tokens: Mapping[str, Array]) -> bool:
    """Return whether a batch has several rows and there are several threads."""
    return min(map(len, tokens.values())) > 1 and threads() > 1


def split_batch(function: Callable[..., Array], tokens: Mapping[str, Array], out: Array) -> Array:
    """Write `function(**tokens)` into `out`, with the rows distributed over threads."""
    batch = len(next(iter(tokens.values())))
    bounds = np.linspace(0, batch, min(batch, threads()) + 1).astype(int)

    def of_rows(begin: int, end: int) -> None:
        with _one_core_a_product():
            out[begin:end] = function(**{name: value[begin:end] for name, value in tokens.items()})

    # Some libraries limit all threads, others only the calling thread, so this thread and each worker set the limit.
    with _ALONE, _one_core_a_product(), ThreadPoolExecutor(len(bounds) - 1) as pool:
        list(pool.map(of_rows, bounds[:-1], bounds[1:]))  # raises the threads' exceptions
    return out


def threads() -> int:
    """Return the number of threads that a matrix product may use."""
    return max((library.num_threads for library in _libraries().select(user_api="blas").lib_controllers), default=1)


def _one_core_a_product() -> AbstractContextManager[Any]:
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limit


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController  # imported here, because it takes a tenth of the import time

    return ThreadpoolController()
