"""The key/value cache: keys and values of earlier tokens, kept for later ones.

A cache is a dictionary of arrays, updated in place: `lengths` (batch,), the number of tokens of each row; `visible`
(batch, capacity), True for tokens that are not padding; per decoder layer the `key` and `value` (batch, key_heads,
capacity, head_dim) of self-attention and, computed once, those of cross-attention; and the source's `memory_mask`.
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
    """Empty cache for `batch` rows of up to `capacity` tokens."""
    shape = (batch, config.key_value_heads, capacity)
    widths = {"key": config.head_dim, "value": config.value_dim}
    layers = [
        {"self_attention": {role: np.zeros((*shape, width), dtype) for role, width in widths.items()}}
        for _ in range(config.num_decoder_layers)
    ]
    return {"lengths": np.zeros(batch, int), "visible": np.zeros((batch, capacity), bool), "layers": layers}


def next_positions(cache: Cache, length: int) -> Int[Array, "batch queries"]:
    """Positions of the next `length` tokens of each row."""
    return cache["lengths"][:, None] + np.arange(length)


def mark_valid(
    cache: Cache, visible: Bool[Array, "batch queries"], positions: Int[Array, "batch queries"]
) -> Bool[Array, "batch keys"]:
    """Mark new non-padding tokens; return validity for the whole cache."""
    cache["visible"][np.arange(len(positions))[:, None], positions] = visible
    return cache["visible"]


def update(
    cache: Cache,
    key: Inexact[Array, "batch key_heads queries head_dim"],
    value: Inexact[Array, "batch key_heads queries value_dim"],
    positions: Int[Array, "batch queries"],
) -> tuple[Inexact[Array, "batch key_heads keys head_dim"], Inexact[Array, "batch key_heads keys value_dim"]]:
    """Write keys and values at `positions`; return those of the whole cache."""
    rows = np.arange(len(positions))[:, None]
    cache["key"][rows, :, positions] = key.swapaxes(1, 2)
    cache["value"][rows, :, positions] = value.swapaxes(1, 2)
    return cache["key"], cache["value"]


def select_rows(cache: Cache, rows: Int[Array, " rows"]) -> Cache:
    """Cache of the given `rows` in the given order; a row may occur more than once."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)
