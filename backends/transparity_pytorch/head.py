"""The head: what comes out of the last layer as logits, or as features of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxtyping import Float
from torch import Tensor

from transparity_pytorch.precision import upcast

if TYPE_CHECKING:
    from transparity_pytorch.transformer import Transformer


def head(
    model: Transformer, x: Float[Tensor, "batch length embed_dim"]
) -> Float[Tensor, "batch length vocab"] | Float[Tensor, "batch length embed_dim"] | Float[Tensor, "batch embed_dim"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or what else `config.head` names."""
    config = model.config
    if config.head == "hidden":
        return x
    if config.head == "pooled":
        return model.pooler(x[:, 0]).tanh()
    if config.head_scale == "embed_dim":
        x = x * config.embed_dim**-0.5
    logits: Tensor = model.head(x)
    return logits if config.final_softcap is None else capped(logits, config.final_softcap)


def capped(x: Float[Tensor, "*batch"], cap: float) -> Float[Tensor, "*batch"]:
    """cap · tanh(x / cap): nearly x where that is small, and never beyond ± cap (Gemma 2)."""
    return ((upcast(x) / cap).tanh() * cap).to(x.dtype)
