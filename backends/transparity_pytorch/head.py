"""The head: logits, hidden states or a pooled state from the last layer's output."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.softcap import apply_softcap
from transparity_pytorch.feed_forward import ACTIVATIONS
from transparity_pytorch.normalization import Norm


def transform_for_head(
    config: TransformerConfig, linear: nn.Linear, norm: Norm, x: Float[Tensor, "batch length embed_dim"]
) -> Float[Tensor, "batch length embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    transformed: Tensor = norm(ACTIVATIONS[config.activation](linear(x)))
    return transformed


def head(
    config: TransformerConfig, linear: nn.Linear | None, x: Float[Tensor, "batch length embed_dim"]
) -> Float[Tensor, "batch length vocab"] | Float[Tensor, "batch length embed_dim"] | Float[Tensor, "batch embed_dim"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or the output that `config.head` names. `linear` is the
    head's or the pooler's; None for hidden states."""
    if linear is None:
        return x
    if config.head == "pooled":
        return linear(x[:, 0]).tanh()
    if config.head_input_scale != 1:
        x = x * config.head_input_scale
    logits: Tensor = linear(x)
    return logits if config.final_softcap is None else apply_softcap(logits, config.final_softcap)
