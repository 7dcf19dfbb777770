"""Norms, which differ in their divisor, in the axes of the mean, and in the position of eps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import Features, Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, where the variance uses n, not n − 1."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    deviation, mean = torch.std_mean(wide, dim=-1, correction=1, keepdim=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).to(x.dtype)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    return F.rms_norm(x, weight.shape, weight, eps)


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    return ((upcast(x) - mean) / torch.sqrt(upcast(variance) + eps) * weight + bias).to(x.dtype)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with n, not n − 1) of each feature over the batch and the positions."""
    variance, mean = torch.var_mean(x, dim=tuple(range(x.ndim - 1)), correction=0)
    return mean, variance


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new. Variances have n (document 001); `torch.nn.BatchNorm1d` has n − 1."""
    return torch.lerp(old, new, momentum)


def statistics(norm: Any, x: Vectors, tap: Tap) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the batch's; training taps the new running statistics."""
    if not norm.training:
        return norm.running_mean, norm.running_var
    mean, variance = batch_statistics(x)
    with torch.no_grad():
        norm.running_mean.copy_(running_average(norm.running_mean, mean, norm.config.norm_momentum))
        norm.running_var.copy_(running_average(norm.running_var, variance, norm.config.norm_momentum))
    tap("running_mean", norm.running_mean)
    tap("running_var", norm.running_var)
    return mean, variance


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nn.Parameter:
    """Return the initial weight of a norm, with which its gain is 1."""
    return nn.Parameter(torch.full((features,), float(config.norm_gain == "weight")))


class HeadNorm(nn.Module):
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, features)

    def forward(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each `config.norm`."""


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
