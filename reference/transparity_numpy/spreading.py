"""One batch over several threads. NumPy's matrix products take all cores by themselves, and all else takes one: where
there are rows enough, each thread takes some of them, and a product one core. JAX does the same with devices; PyTorch's
kernels take all cores."""

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
"""Keeps a second caller from taking the first one's limit for how it was before."""


def can_be_spread(tokens: Mapping[str, Array]) -> bool:
    """Whether there are rows for more than one thread, and threads."""
    return min(map(len, tokens.values())) > 1 and threads() > 1


def spread(function: Callable[..., Array], tokens: Mapping[str, Array]) -> Array:
    """`function` of the tokens, each thread with some of their rows."""
    batch = len(next(iter(tokens.values())))
    bounds = np.linspace(0, batch, min(batch, threads()) + 1).astype(int)

    def of_rows(begin: int, end: int) -> Array:
        with _one_core_a_product():
            return function(**{name: value[begin:end] for name, value in tokens.items()})

    # Some libraries are told for all threads, by whoever tells them first, and some for the thread that tells them.
    with _ALONE, _one_core_a_product(), ThreadPoolExecutor(len(bounds) - 1) as pool:
        return np.concatenate(list(pool.map(of_rows, bounds[:-1], bounds[1:])))


def threads() -> int:
    """As many as a matrix product may take."""
    return max((library.num_threads for library in _libraries().select(user_api="blas").lib_controllers), default=1)


def _one_core_a_product() -> AbstractContextManager[Any]:
    limit: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limit


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController  # which takes a tenth of the time that all else here takes to import

    return ThreadpoolController()
