"""The head: logits, hidden states, a pooled state or its classes from the last layer's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.softcap import apply_softcap
from transparity_pytorch.fast.fast_linear import product_into
from transparity_pytorch.feed_forward import ACTIVATIONS
from transparity_pytorch.normalization import Norm


def transform_for_head(
    config: TransformerConfig, linear: nn.Linear, norm: Norm, x: Float[Tensor, "*batch embed_dim"]
) -> Float[Tensor, "*batch embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    transformed: Tensor = norm(ACTIVATIONS[config.activation](linear(x)))
    return transformed


POOLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""Activations behind the linear map of a pooled state."""


def pool(
    config: TransformerConfig,
    x: Float[Tensor, "batch length embed_dim"],
    is_token: Bool[Tensor, "batch length"],
    tokens: Int[Tensor, "batch length"] | None,
) -> Float[Tensor, "batch embed_dim"]:
    """One state of each row: the first position (Devlin et al. 2019), the mean of the visible ones (Reimers and
    Gurevych 2019, §3), the last of them, or the first `eos_id` or largest token (Radford et al. 2021, §2.4); in a row
    without any, these are the first position, and the mean 0."""
    if config.pooling == "mean":
        count = is_token.sum(dim=1, keepdim=True).clamp(min=1).to(x.dtype)
        return (x * is_token[:, :, None]).sum(dim=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = torch.arange(x.shape[1], device=x.device) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images are not pooled by tokens
        eos = -1 if config.eos_id is None else config.eos_id
        rank = tokens if config.pooling == "largest" else (tokens == eos).int()
    return x[torch.arange(len(x), device=x.device), rank.argmax(dim=1)]


def pooled_head(
    model: Any, config: TransformerConfig, x: Float[Tensor, "batch embed_dim"]
) -> Float[Tensor, "batch classes"] | Float[Tensor, "batch embed_dim"]:
    """The pooled state through the pooler, if there is one, and for `classes` a linear map to them."""
    if config.has_pooler:
        x = POOLERS[config.pooler](model.pooler(x))
    if config.head == "pooled":
        return x
    if config.head_transform:
        x = transform_for_head(config, model.head_transform, model.head_norm, x)
    classes: Tensor = model.head(x)
    return classes


def head(
    config: TransformerConfig,
    linear: nn.Linear,
    x: Float[Tensor, "batch length embed_dim"],
    out: Float[Tensor, "batch length vocab"] | Float[Tensor, "batch features"] | None = None,
) -> Float[Tensor, "batch length vocab"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), in a contiguous `out` if nothing follows."""
    if config.head_input_scale != 1:
        x = x * config.head_input_scale
    if out is not None and out.is_contiguous() and config.final_softcap is None:
        return product_into(out, linear, x)
    logits: Tensor = linear(x)
    return logits if config.final_softcap is None else apply_softcap(logits, config.final_softcap)
