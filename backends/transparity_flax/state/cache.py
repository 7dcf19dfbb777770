"""The cache of decoding: keys and values of earlier tokens, or the states of recurrences.

A cache is a dictionary of arrays, each replaced when it changes:

    lengths      (batch,)           the number of tokens of each row
    is_token     (batch, capacity)  True for tokens that are not padding
    memory_mask                     the source's mask, if there is a source
    layers                          one dictionary for each decoder layer

A layer has the arrays of its mixer (`transparity.parts.tables.MIXERS`), and the `key` and `value` (batch, key_heads,
capacity, head_dim) of cross-attention.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float, Int

from transparity.config import TransformerConfig
from transparity.parts.tables import MIXERS
from transparity_flax.shapes import EarlierChannels, IsQuery, IsToken, Keys, Lengths, QueryIds, Rates, Values

Cache = dict[str, Any]


def empty_cache(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """Return an empty cache for `batch` rows of up to `capacity` tokens."""
    layers = [
        _empty_layer(config.for_layer("decoder", i), batch, capacity, dtype) for i in range(config.num_decoder_layers)
    ]
    return {"lengths": jnp.zeros(batch, int), "is_token": jnp.zeros((batch, capacity), bool), "layers": layers}


def next_positions(cache: Cache, length: int) -> QueryIds:
    return cache["lengths"][:, None] + jnp.arange(length)


def mark_valid(cache: Cache, is_token: IsQuery, positions: QueryIds) -> IsToken:
    """Record which new tokens are not padding, and return `is_token` of all cached tokens."""
    cache["is_token"] = cache["is_token"].at[_rows(positions), positions].set(is_token)
    return cache["is_token"]


def update(
    cache: Cache,
    key: Float[Array, "batch key_heads queries head_dim"],
    value: Float[Array, "batch key_heads queries value_dim"],
    positions: QueryIds,
) -> tuple[Keys, Values]:
    """Write keys and values at `positions`, and return all keys and values in the cache."""
    cache["key"] = cache["key"].at[_rows(positions), :, positions].set(key.swapaxes(1, 2))
    cache["value"] = cache["value"].at[_rows(positions), :, positions].set(value.swapaxes(1, 2))
    return cache["key"], cache["value"]


def update_inputs(
    cache: Cache, name: str, x: Float[Array, "batch queries features"], valid_lengths: Lengths | None
) -> EarlierChannels:
    """Return the convolution's cached inputs, which precede `x`, and cache the last valid inputs for the next step."""
    before, valid_lengths = cache[name], jnp.full(len(x), x.shape[1]) if valid_lengths is None else valid_lengths
    last = valid_lengths[:, None] + jnp.arange(before.shape[1])
    cache[name] = jnp.take_along_axis(jnp.concatenate([before, x], axis=1), last[..., None], axis=1)
    return before


def held_tokens(x: Rates, valid_lengths: Lengths | None) -> Rates:
    """Return `x` with 0 for fillers, which follow the `valid_lengths` tokens of a row and must not change the state."""
    if valid_lengths is None:
        return x
    return jnp.where((jnp.arange(x.shape[1]) < valid_lengths[:, None])[..., None], x, jnp.zeros((), x.dtype))


def select_rows(cache: Cache, rows: Int[Array, " rows"]) -> Cache:
    """Return a cache with these `rows` in this order; a row may be repeated."""
    return jax.tree.map(lambda held: held[rows], cache)


def _rows(positions: QueryIds) -> Int[Array, "batch 1"]:
    return jnp.arange(len(positions))[:, None]


def _empty_layer(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """Return zeros for every array in the cache of a layer's mixer."""
    mixer, wide = MIXERS[config.mixer], jnp.promote_types(dtype, jnp.float32)
    held = mixer.state(config).items()
    arrays = {name: jnp.zeros(it.sizes(batch, capacity), wide if it.is_wide else dtype) for name, it in held}
    return {mixer.scope: arrays}
