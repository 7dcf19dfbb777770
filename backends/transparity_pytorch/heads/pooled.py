"""The pooled state: one state per row, and the pooler after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.activations import ACTIVATIONS
from transparity_pytorch.shapes import Hidden, PooledState, TokenIds

POOLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""The activation functions after the linear map of the pooled state."""


def pool(
    config: TransformerConfig, x: Hidden, is_token: Bool[Tensor, "batch length"], tokens: TokenIds | None
) -> PooledState:
    """Return one state per row, chosen by `config.pooling`.

    `first` is the first position (Devlin et al. 2019). `mean` averages the tokens that are not padding (Reimers and
    Gurevych 2019, §3); `last` is the last such token. `eos` is the first `eos_id`, `largest` the largest token id
    (Radford et al. 2021, §2.4). If all tokens of a row are padding, `mean` is 0 and `last` is the first position. If a
    row has no `eos_id`, `eos` is the first position."""
    if config.pooling == "mean":
        count = is_token.sum(dim=1, keepdim=True).clamp(min=1).to(x.dtype)
        return (x * is_token[:, :, None]).sum(dim=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = torch.arange(x.shape[1], device=x.device) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images have no tokens
        rank = tokens if config.pooling == "largest" else (tokens == config.ending_id).int()
    return x[torch.arange(len(x), device=x.device), rank.argmax(dim=1)]


def pooled(config: TransformerConfig, model: Any, x: PooledState) -> PooledState:
    """activation(x Wᵀ + b) if there is a pooler, else x, where x is the pooled state."""
    return POOLERS[config.pooler](model.pooler(x)) if config.has_pooler else x
