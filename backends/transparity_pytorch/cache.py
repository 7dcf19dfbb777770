"""The key/value cache: what attention made of the tokens so far, kept for those that follow.

A cache is a dictionary of tensors, filled in place: `lengths` (batch,), how many tokens each row has so far; `visible`
(batch, capacity), which of them are no padding; for every decoder layer the `key` and `value` (batch, key_heads,
capacity, head_dim) of its self-attention and those of its cross-attention, computed once; and the `memory_mask` of the
source.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transparity.config import TransformerConfig

Cache = dict[str, Any]


def empty_cache(
    config: TransformerConfig, batch: int, capacity: int, dtype: torch.dtype, device: torch.device | str | None = None
) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens, with nothing in it."""

    def zeros() -> Tensor:
        return torch.zeros(batch, config.key_value_heads, capacity, config.head_dim, dtype=dtype, device=device)

    layers = [{"self_attention": {"key": zeros(), "value": zeros()}} for _ in range(config.num_decoder_layers)]
    lengths = torch.zeros(batch, dtype=torch.long, device=device)
    return {
        "lengths": lengths,
        "visible": torch.zeros(batch, capacity, dtype=torch.bool, device=device),
        "layers": layers,
    }


def positions_behind(cache: Cache, length: int) -> Int[Tensor, "batch queries"]:
    """Where the next `length` tokens of each row come to stand."""
    return cache["lengths"][:, None] + torch.arange(length, device=cache["lengths"].device)


def show(
    cache: Cache, visible: Bool[Tensor, "batch queries"], positions: Int[Tensor, "batch queries"]
) -> Bool[Tensor, "batch keys"]:
    """Note which of the tokens at `positions` are no padding; which of all are not."""
    cache["visible"][_rows(positions), positions] = visible
    return cache["visible"]


def remember(
    cache: Cache,
    key: Float[Tensor, "batch key_heads queries head_dim"],
    value: Float[Tensor, "batch key_heads queries head_dim"],
    positions: Int[Tensor, "batch queries"],
) -> tuple[Float[Tensor, "batch key_heads keys head_dim"], Float[Tensor, "batch key_heads keys head_dim"]]:
    """Keep the keys and values of the tokens at `positions`, over whatever stood there; those of all tokens."""
    cache["key"][_rows(positions), :, positions] = key.transpose(1, 2)
    cache["value"][_rows(positions), :, positions] = value.transpose(1, 2)
    return cache["key"], cache["value"]


def taken(cache: Cache, rows: Int[Tensor, " rows"]) -> Cache:
    """The cache of `rows` alone, in their order; a row may be taken more than once."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)


def _rows(positions: Int[Tensor, "batch queries"]) -> Int[Tensor, "batch 1"]:
    return torch.arange(len(positions), device=positions.device)[:, None]
