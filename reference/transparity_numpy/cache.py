"""The key/value cache: what attention made of the tokens so far, kept for those that follow.

A cache is a dictionary of arrays, filled in place: `lengths` (batch,), how many tokens each row has so far; `visible`
(batch, capacity), which of them are no padding; for every decoder layer the `key` and `value` (batch, key_heads,
capacity, head_dim) of its self-attention and those of its cross-attention, computed once; and the `memory_mask` of the
source.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig

Cache = dict[str, Any]


def empty_cache(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens, with nothing in it."""
    shape = (batch, config.key_value_heads, capacity, config.head_dim)
    layers = [
        {"self_attention": {"key": np.zeros(shape, dtype), "value": np.zeros(shape, dtype)}}
        for _ in range(config.num_decoder_layers)
    ]
    return {"lengths": np.zeros(batch, int), "visible": np.zeros((batch, capacity), bool), "layers": layers}


def positions_behind(cache: Cache, length: int) -> Int[Array, "batch queries"]:
    """Where the next `length` tokens of each row come to stand."""
    return cache["lengths"][:, None] + np.arange(length)


def show(
    cache: Cache, visible: Bool[Array, "batch queries"], positions: Int[Array, "batch queries"]
) -> Bool[Array, "batch keys"]:
    """Note which of the tokens at `positions` are no padding; which of all are not."""
    cache["visible"][np.arange(len(positions))[:, None], positions] = visible
    return cache["visible"]


def remember(
    cache: Cache,
    key: Inexact[Array, "batch key_heads queries head_dim"],
    value: Inexact[Array, "batch key_heads queries head_dim"],
    positions: Int[Array, "batch queries"],
) -> tuple[Inexact[Array, "batch key_heads keys head_dim"], Inexact[Array, "batch key_heads keys head_dim"]]:
    """Keep the keys and values of the tokens at `positions`, over whatever stood there; those of all tokens."""
    rows = np.arange(len(positions))[:, None]
    cache["key"][rows, :, positions] = key.swapaxes(1, 2)
    cache["value"][rows, :, positions] = value.swapaxes(1, 2)
    return cache["key"], cache["value"]


def taken(cache: Cache, rows: Int[Array, " rows"]) -> Cache:
    """The cache of `rows` alone, in their order; a row may be taken more than once."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)
