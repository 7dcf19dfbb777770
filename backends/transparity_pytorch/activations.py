"""Activation functions, and gated linear units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Features


def _gelu_quick(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """x · σ(1.702 x): the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, §2)."""
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "gelu-quick": _gelu_quick,
    "silu": F.silu,
}
"""The function for each value of `config.activation`."""


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + `up_offset`) (Shazeer 2020); a `gate_limit` first bounds gate and up (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    up = up + config.up_offset if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up
