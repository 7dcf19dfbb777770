"""The key/value cache: keys and values of earlier tokens, kept for later ones.

A cache is a dictionary of tensors, updated in place: `lengths` (batch,), the number of tokens of each row;
`visible` (batch, capacity), True for tokens that are not padding; per decoder layer the `key` and `value` (batch,
key_heads, capacity, head_dim) of self-attention and, computed once, those of cross-attention; and the source's
`memory_mask`.
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
    """Empty cache for `batch` rows of up to `capacity` tokens."""

    def zeros(width: int) -> Tensor:
        return torch.zeros(batch, config.key_value_heads, capacity, width, dtype=dtype, device=device)

    widths = {"key": config.head_dim, "value": config.value_dim}
    layers = [
        {"self_attention": {role: zeros(width) for role, width in widths.items()}}
        for _ in range(config.num_decoder_layers)
    ]
    lengths = torch.zeros(batch, dtype=torch.long, device=device)
    return {
        "lengths": lengths,
        "visible": torch.zeros(batch, capacity, dtype=torch.bool, device=device),
        "layers": layers,
    }


def next_positions(cache: Cache, length: int) -> Int[Tensor, "batch queries"]:
    """Positions of the next `length` tokens of each row."""
    return cache["lengths"][:, None] + torch.arange(length, device=cache["lengths"].device)


def mark_valid(
    cache: Cache, visible: Bool[Tensor, "batch queries"], positions: Int[Tensor, "batch queries"]
) -> Bool[Tensor, "batch keys"]:
    """Mark new non-padding tokens; return validity for the whole cache."""
    cache["visible"][_rows(positions), positions] = visible
    return cache["visible"]


def update(
    cache: Cache,
    key: Float[Tensor, "batch key_heads queries head_dim"],
    value: Float[Tensor, "batch key_heads queries value_dim"],
    positions: Int[Tensor, "batch queries"],
) -> tuple[Float[Tensor, "batch key_heads keys head_dim"], Float[Tensor, "batch key_heads keys value_dim"]]:
    """Write keys and values at `positions`; return those of the whole cache."""
    cache["key"][_rows(positions), :, positions] = key.transpose(1, 2)
    cache["value"][_rows(positions), :, positions] = value.transpose(1, 2)
    return cache["key"], cache["value"]


def select_rows(cache: Cache, rows: Int[Tensor, " rows"]) -> Cache:
    """Cache of the given `rows` in the given order; a row may occur more than once."""

    def take(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: take(held) for name, held in value.items()}
        return [take(held) for held in value] if isinstance(value, list) else value[rows]

    return take(cache)


def _rows(positions: Int[Tensor, "batch queries"]) -> Int[Tensor, "batch 1"]:
    return torch.arange(len(positions), device=positions.device)[:, None]
