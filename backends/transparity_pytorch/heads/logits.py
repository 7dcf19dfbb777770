"""Logits over the vocabulary (Vaswani et al. 2017, §3.4)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.softcap import apply_softcap
from transparity_pytorch.heads.transform import transform_for_head, transform_parts
from transparity_pytorch.shapes import Vectors


def logits_parts(config: TransformerConfig) -> dict[str, nn.Module]:
    """Return the modules of `logits`: a linear map, whose weight is tied to the token embeddings later if
    configured."""
    return transform_parts(config) | {"head": nn.Linear(config.embed_dim, config.head_size, bias=config.head_bias)}


def logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Tensor, "*batch vocab"]:
    """softcap(x Wᵀ + b); a tied head multiplies by the token embeddings (Press and Wolf 2017)."""
    x = transform_for_head(config, model, x)
    if config.head_input_scale != 1:
        x = x * config.head_input_scale
    y = model.head(x)
    return y if config.final_softcap is None else apply_softcap(y, config.final_softcap)
