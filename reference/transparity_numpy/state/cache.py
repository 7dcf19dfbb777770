"""The cache of decoding: keys and values of earlier tokens, or the states of recurrences.

A cache is a dictionary of arrays, updated in place:

    lengths      (batch,)           the number of tokens of each row
    is_token     (batch, capacity)  True for tokens that are not padding
    memory_mask                     the source's mask, if there is a source
    layers                          one dictionary for each decoder layer

A layer has the arrays of its mixer (`transparity.parts.tables.MIXERS`), and the `key` and `value` (batch, key_heads,
capacity, head_dim) of cross-attention.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Inexact, Int
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity.parts.tables import MIXERS
from transparity_numpy.shapes import EarlierChannels, IsQuery, IsToken, Keys, Lengths, QueryIds, Rates, Values

Cache = dict[str, Any]


def empty_cache(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """Return an empty cache for `batch` rows of up to `capacity` tokens."""
    layers = [
        _empty_layer(config.for_layer("decoder", i), batch, capacity, dtype) for i in range(config.num_decoder_layers)
    ]
    return {"lengths": np.zeros(batch, int), "is_token": np.zeros((batch, capacity), bool), "layers": layers}


def next_positions(cache: Cache, length: int) -> QueryIds:
    return cache["lengths"][:, None] + np.arange(length)


def mark_valid(cache: Cache, is_token: IsQuery, positions: QueryIds) -> IsToken:
    """Record which new tokens are not padding, and return `is_token` of all cached tokens."""
    cache["is_token"][np.arange(len(positions))[:, None], positions] = is_token
    return cache["is_token"]


def update(
    cache: Cache,
    key: Inexact[Array, "batch key_heads queries head_dim"],
    value: Inexact[Array, "batch key_heads queries value_dim"],
    positions: QueryIds,
) -> tuple[Keys, Values]:
    """Write keys and values at `positions`, and return all keys and values in the cache."""
    rows = np.arange(len(positions))[:, None]
    cache["key"][rows, :, positions] = key.swapaxes(1, 2)
    cache["value"][rows, :, positions] = value.swapaxes(1, 2)
    return cache["key"], cache["value"]


def update_inputs(
    cache: Cache, name: str, x: Inexact[Array, "batch queries features"], valid_lengths: Lengths | None
) -> EarlierChannels:
    """Return the convolution's cached inputs, which precede `x`, and cache the last valid inputs for the next step."""
    before, valid_lengths = cache[name], np.full(len(x), x.shape[1]) if valid_lengths is None else valid_lengths
    last = valid_lengths[:, None] + np.arange(before.shape[1])
    cache[name] = np.take_along_axis(np.concatenate([before, x], axis=1), last[..., None], axis=1)
    return before


def held_tokens(x: Rates, valid_lengths: Lengths | None) -> Rates:
    """Return `x` with 0 for fillers, which follow the `valid_lengths` tokens of a row and must not change the state."""
    if valid_lengths is None:
        return x
    return np.where((np.arange(x.shape[1]) < valid_lengths[:, None])[..., None], x, x.dtype.type(0))


def select_rows(cache: Cache, rows: Int[Array, " rows"]) -> Cache:
    """Return a cache with these `rows` in this order; a row may be repeated."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)


def _empty_layer(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """Return zeros for every array in the cache of a layer's mixer."""
    mixer, wide = MIXERS[config.mixer], np.promote_types(dtype, np.float32)
    held = mixer.state(config).items()
    arrays = {name: np.zeros(it.sizes(batch, capacity), wide if it.is_wide else dtype) for name, it in held}
    return {mixer.scope: arrays}
