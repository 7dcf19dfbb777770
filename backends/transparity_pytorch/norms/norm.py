"""Norms over the features of a position, and the choice of a norm by the configuration."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.norms.batch import batch_norm, statistics
from transparity_pytorch.norms.variants import layer_norm_unbiased, rms_norm
from transparity_pytorch.shapes import Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the n features; the variance's divisor is n, not n − 1."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nn.Parameter:
    """Return the initial weight of a norm: 1, or 0 if the gain is 1 + weight."""
    return nn.Parameter(torch.full((features,), float(config.norm_gain == "weight")))


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each value of `config.norm`."""


class Norm(nn.Module):
    """The norm that `config.norm` names."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, config.embed_dim)
        if config.has_norm_bias:
            self.bias = nn.Parameter(torch.zeros(config.embed_dim))
        if config.norm == "batch":
            self.register_buffer("running_mean", torch.zeros(config.embed_dim))
            self.register_buffer("running_var", torch.ones(config.embed_dim))

    def forward(self, x: Vectors, tap: Tap = identity) -> Vectors:
        config, affine = self.config, [gain(self.config, self.weight)]
        if config.norm != "rms":
            affine.append(self.bias if config.norm_bias else torch.zeros_like(affine[0]))
        if config.norm == "batch":
            affine += statistics(self, x, tap)
        return NORMS[config.norm](x, *affine, config.norm_eps)
