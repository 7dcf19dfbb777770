"""The outputs for each position: logits (Vaswani et al. 2017, §3.4) or hidden states."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.activations import ACTIVATIONS
from transparity_pytorch.arithmetic.precision import apply_softcap
from transparity_pytorch.shapes import Vectors


def transform_for_head(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code)."""
    return model.head_norm(ACTIVATIONS[config.activation](model.head_transform(x)))


def logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Tensor, "*batch vocab"]:
    """softcap(x Wᵀ + b), where W of a tied head is the table of token embeddings (Press and Wolf 2017)."""
    x = transform_for_head(config, model, x) if config.head_transform else x
    x = x if config.head_input_scale == 1 else x * config.head_input_scale
    y = model.head(x)
    return y if config.final_softcap is None else apply_softcap(y, config.final_softcap)


def hidden(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    return x
