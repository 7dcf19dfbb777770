"""The key/value cache: what attention made of the tokens so far, kept for those that follow.

A cache is a dictionary of arrays, replaced in it: `lengths` (batch,), how many tokens each row has so far; `visible`
(batch, capacity), which of them are no padding; for every decoder layer the `key` and `value` (batch, key_heads,
capacity, head_dim) of its self-attention and those of its cross-attention, computed once; and the `memory_mask` of the
source.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, DTypeLike, Float, Int

from transparity.config import TransformerConfig

Cache = dict[str, Any]


def empty_cache(config: TransformerConfig, batch: int, capacity: int, dtype: DTypeLike) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens, with nothing in it."""
    shape = (batch, config.key_value_heads, capacity, config.head_dim)
    layers = [
        {"self_attention": {"key": jnp.zeros(shape, dtype), "value": jnp.zeros(shape, dtype)}}
        for _ in range(config.num_decoder_layers)
    ]
    return {"lengths": jnp.zeros(batch, int), "visible": jnp.zeros((batch, capacity), bool), "layers": layers}


def positions_behind(cache: Cache, length: int) -> Int[Array, "batch queries"]:
    """Where the next `length` tokens of each row come to stand."""
    return cache["lengths"][:, None] + jnp.arange(length)


def show(
    cache: Cache, visible: Bool[Array, "batch queries"], positions: Int[Array, "batch queries"]
) -> Bool[Array, "batch keys"]:
    """Note which of the tokens at `positions` are no padding; which of all are not."""
    cache["visible"] = cache["visible"].at[_rows(positions), positions].set(visible)
    return cache["visible"]


def remember(
    cache: Cache,
    key: Float[Array, "batch key_heads queries head_dim"],
    value: Float[Array, "batch key_heads queries head_dim"],
    positions: Int[Array, "batch queries"],
) -> tuple[Float[Array, "batch key_heads keys head_dim"], Float[Array, "batch key_heads keys head_dim"]]:
    """Keep the keys and values of the tokens at `positions`, over whatever stood there; those of all tokens."""
    cache["key"] = cache["key"].at[_rows(positions), :, positions].set(key.swapaxes(1, 2))
    cache["value"] = cache["value"].at[_rows(positions), :, positions].set(value.swapaxes(1, 2))
    return cache["key"], cache["value"]


def taken(cache: Cache, rows: Int[Array, " rows"]) -> Cache:
    """The cache of `rows` alone, in their order; a row may be taken more than once."""
    return jax.tree.map(lambda held: held[rows], cache)


def _rows(positions: Int[Array, "batch queries"]) -> Int[Array, "batch 1"]:
    return jnp.arange(len(positions))[:, None]
