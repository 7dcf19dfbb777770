"""The reference's attention in blocks of queries, so that masks, biases and scores of a long sequence fit into memory.

The results are unchanged, because each query has its own softmax over the keys.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

from transparity.config import EXACT_MASK_BELOW, TransformerConfig
from transparity_numpy.masks import target_mask, window_mask
from transparity_numpy.mixers import attention as of_reference
from transparity_numpy.mixers.attention import repeat_heads
from transparity_numpy.positions.bias import score_bias

BLOCK = 128
"""The number of queries per block, which the reference's fused attention also uses."""

Make = Callable[[slice, slice], np.ndarray]


@dataclass(frozen=True)
class Rows:
    """An array (batch, heads, queries, keys) that is computed in parts, on request."""

    keys: int
    make: Make

    __array_ufunc__ = None  # NumPy arrays then use `__rand__` for `&`

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, 1, 1, self.keys)

    def __and__(self, other: Rows | np.ndarray) -> Rows:
        return Rows(self.keys, lambda queries, keys: self.make(queries, keys) & part(other, queries, keys))

    __rand__ = __and__


def part(value: Rows | np.ndarray, queries: slice, keys: slice) -> np.ndarray:
    """Return the part of an array (batch, heads, queries or 1, keys) for some queries and keys."""
    if isinstance(value, Rows):
        return value.make(queries, keys)
    return value[:, :, queries if value.shape[2] > 1 else slice(None), keys]


def _target_mask(positions: np.ndarray, visible: np.ndarray, kind: Any) -> Rows:
    return Rows(
        visible.shape[1],
        lambda queries, keys: target_mask(positions[:, queries] - keys.start, visible[:, keys], kind),
    )


def _window_mask(positions: np.ndarray, keys: int, window: int, kind: Any) -> Rows:
    return Rows(keys, lambda queries, keys: window_mask(positions[:, queries], keys.stop, window, kind)[..., keys])


def _score_bias(
    config: TransformerConfig, parameters: Any, positions: np.ndarray, keys: int, dtype: Any, *, both: bool
) -> Rows:
    def make(queries: slice, keys: slice) -> np.ndarray:
        shifted, count = positions[:, queries] - keys.start, keys.stop - keys.start
        return score_bias(config, parameters, shifted, count, dtype, both=both)

    return Rows(keys, make)


def _seen_keys(mask: Rows | np.ndarray, queries: slice, count: int, masked_score: float) -> slice:
    """Return the range of keys that a block of queries may see.

    It is the range of all keys if masked keys have weights other than 0. Otherwise, the first and the last query of the
    block determine it, because no query between them sees earlier or later keys.
    """
    every = slice(0, count)
    if masked_score >= EXACT_MASK_BELOW:
        return every
    first, last = (
        np.flatnonzero(part(mask, slice(query, query + 1), every).any(axis=(0, 1, 2)))
        for query in (queries.start, queries.stop - 1)
    )
    seen = slice(int(first.min(initial=count)), int(last.max(initial=-1)) + 1)
    sees_something = seen.start < seen.stop and part(mask, queries, seen).any(axis=-1).all()
    return seen if sees_something else every


def _in_blocks(whole: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return the attention function `whole`, applied to one block of queries at a time."""

    def attention(
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        mask: Rows | np.ndarray,
        *,
        bias: Rows | np.ndarray | None = None,
        **named: Any,
    ) -> np.ndarray:
        key, value, length = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1]), query.shape[2]
        parts = []
        for begin in range(0, length, BLOCK):
            queries = slice(begin, min(begin + BLOCK, length))
            keys = _seen_keys(mask, queries, key.shape[2], named["masked_score"])
            seen, near = part(mask, queries, keys), None if bias is None else part(bias, queries, keys)
            parts.append(whole(query[:, :, queries], key[:, :, keys], value[:, :, keys], seen, bias=near, **named))
        return np.concatenate(parts, axis=1)

    return attention


@contextlib.contextmanager
def blocks_of_queries() -> Iterator[None]:
    """Make the reference compute attention in blocks of queries within the context."""
    # The reference has no option for this; it is needed only if the scores do not fit into memory.
    with (
        mock.patch("transparity_numpy.transformer.target_mask", _target_mask),
        mock.patch("transparity_numpy.transformer.window_mask", _window_mask),
        mock.patch("transparity_numpy.transformer.score_bias", _score_bias),
        mock.patch("transparity_numpy.mixers.attention.attention", _in_blocks(of_reference.attention)),
    ):
        yield
