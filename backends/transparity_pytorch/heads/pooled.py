"""Pooling to one state per row, and the pooler: a linear map of this state, followed by an activation."""

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
"""The function for each value of `config.pooler` except `none`."""


def pool(
    config: TransformerConfig, x: Hidden, is_token: Bool[Tensor, "batch length"], tokens: TokenIds | None
) -> PooledState:
    """Return one state per row, chosen or averaged as `config.pooling` says.

    `first` is the first state (Devlin et al. 2019), and `last` is the last state that is not padding. `mean` averages
    all states that are not padding (Reimers and Gurevych 2019, §3). `eos` is the state of the first `eos_id`, and
    `largest` is the state of the largest token id (Radford et al. 2021, §2.4). In a row with only padding, `mean` is 0,
    and `last` is the first state. In a row without `eos_id`, `eos` is the first state."""
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
