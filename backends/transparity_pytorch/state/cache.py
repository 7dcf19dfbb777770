"""The cache of decoding: keys and values of earlier tokens, or the states of recurrences.

A cache is a dictionary of tensors, updated in place:

    lengths      (batch,)           the number of tokens of each row
    is_token     (batch, capacity)  True for tokens that are not padding
    memory_mask                     the source's mask, if there is a source
    layers                          one dictionary for each decoder layer

A layer has the arrays of its mixer (`transparity.parts.tables.MIXERS`), and the `key` and `value` (batch, key_heads,
capacity, head_dim) of cross-attention.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transparity.config import TransformerConfig
from transparity.parts.tables import MIXERS
from transparity_pytorch.shapes import EarlierChannels, IsQuery, IsToken, Keys, Lengths, QueryIds, Rates, Values

Cache = dict[str, Any]


def empty_cache(
    config: TransformerConfig, batch: int, capacity: int, dtype: torch.dtype, device: torch.device
) -> Cache:
    """Return an empty cache for `batch` rows of up to `capacity` tokens."""
    with device:
        kinds = [config.for_layer("decoder", i) for i in range(config.num_decoder_layers)]
        layers = [_empty_layer(layer_config, batch, capacity, dtype) for layer_config in kinds]
        is_token = torch.zeros(batch, capacity, dtype=torch.bool)
        return {"lengths": torch.zeros(batch, dtype=torch.long), "is_token": is_token, "layers": layers}


def next_positions(cache: Cache, length: int) -> QueryIds:
    return cache["lengths"][:, None] + torch.arange(length, device=cache["lengths"].device)


def mark_valid(cache: Cache, is_token: IsQuery, positions: QueryIds) -> IsToken:
    """Record which new tokens are not padding, and return `is_token` of all cached tokens."""
    cache["is_token"][_rows(positions), positions] = is_token
    return cache["is_token"]


def update(
    cache: Cache,
    key: Float[Tensor, "batch key_heads queries head_dim"],
    value: Float[Tensor, "batch key_heads queries value_dim"],
    positions: QueryIds,
) -> tuple[Keys, Values]:
    """Write keys and values at `positions`, and return all keys and values in the cache."""
    rows = _rows(positions)
    cache["key"][rows, :, positions] = key.transpose(1, 2)
    cache["value"][rows, :, positions] = value.transpose(1, 2)
    return cache["key"], cache["value"]


def update_inputs(
    cache: Cache, name: str, x: Float[Tensor, "batch queries features"], valid_lengths: Lengths | None
) -> EarlierChannels:
    """Return the convolution's cached inputs, which precede `x`, and cache the last valid inputs for the next step."""
    before, length = cache[name].clone(), x.shape[1]
    last = torch.arange(before.shape[1], device=x.device) + (
        length if valid_lengths is None else valid_lengths[:, None]
    )
    cache[name].copy_(torch.cat([before, x], dim=1).take_along_dim(last.expand(len(x), -1)[..., None], dim=1))
    return before


def held_tokens(x: Rates, valid_lengths: Lengths | None) -> Rates:
    """Return `x` with 0 for fillers, which follow the `valid_lengths` tokens of a row and must not change the state."""
    if valid_lengths is None:
        return x
    return x.masked_fill((torch.arange(x.shape[1], device=x.device) >= valid_lengths[:, None])[..., None], 0)


def select_rows(cache: Cache, rows: Int[Tensor, " rows"]) -> Cache:
    """Return a cache with these `rows` in this order; a row may be repeated."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)


def _rows(positions: QueryIds) -> Int[Tensor, "batch 1"]:
    return torch.arange(len(positions), device=positions.device)[:, None]


def _empty_layer(config: TransformerConfig, batch: int, capacity: int, dtype: torch.dtype) -> Cache:
    """Return zeros for every array in the cache of a layer's mixer."""
    mixer, wide = MIXERS[config.mixer], torch.promote_types(dtype, torch.float32)
    held = mixer.state(config).items()
    arrays = {name: torch.zeros(it.sizes(batch, capacity), dtype=wide if it.is_wide else dtype) for name, it in held}
    return {mixer.scope: arrays}
