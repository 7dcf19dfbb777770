"""The outputs for each position: logits (Vaswani et al. 2017, §3.4) or hidden states; `HEADS` has all outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.precision import apply_softcap
from transparity_flax.heads.pooling import classes, pooled, transform_for_head
from transparity_flax.shapes import Vectors
from transparity_flax.state.tied import tied_logits


def logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Array, "*batch vocab"]:
    """softcap(x Wᵀ + b); a tied head multiplies by the token embeddings (Press and Wolf 2017)."""
    x = transform_for_head(config, model, x) if config.head_transform else x
    x = x if config.head_input_scale == 1 else x * config.head_input_scale
    y = tied_logits(config, model, x) if config.has_tied_head else model.head(x)
    return y if config.final_softcap is None else apply_softcap(y, config.final_softcap)


def hidden(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    return x


HEADS: dict[str, Callable[..., Array]] = {"logits": logits, "hidden": hidden, "pooled": pooled, "classes": classes}
"""The function for each `config.head`; `x` is the pooled state if `config.is_pooled`."""
