"""Normalization layers; they differ in the deviation they divide by, its axes, and the position of eps."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.arithmetic.precision import upcast


def layer_norm(
    x: Float[Tensor, "*batch embed_dim"],
    weight: Float[Tensor, " embed_dim"],
    bias: Float[Tensor, " embed_dim"],
    eps: float,
) -> Float[Tensor, "*batch embed_dim"]:
    """(x − mean) / √(variance + eps) · weight + bias over the features, the variance over n (Ba et al. 2016)."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def layer_norm_unbiased(
    x: Float[Tensor, "*batch embed_dim"],
    weight: Float[Tensor, " embed_dim"],
    bias: Float[Tensor, " embed_dim"],
    eps: float,
) -> Float[Tensor, "*batch embed_dim"]:
    """(x − mean) / (deviation + eps) · weight + bias, the deviation over n − 1, eps outside the root (document 003)."""
    wide = upcast(x)
    deviation, mean = torch.std_mean(wide, dim=-1, correction=1, keepdim=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).to(x.dtype)


def rms_norm(
    x: Float[Tensor, "*batch embed_dim"], weight: Float[Tensor, " embed_dim"], eps: float
) -> Float[Tensor, "*batch embed_dim"]:
    """x / √(mean of x² + eps) · weight over the features (Zhang and Sennrich 2019, eq. 4)."""
    return F.rms_norm(x, weight.shape, weight, eps)


def batch_norm(
    x: Float[Tensor, "*batch embed_dim"],
    weight: Float[Tensor, " embed_dim"],
    bias: Float[Tensor, " embed_dim"],
    mean: Float[Tensor, " embed_dim"],
    variance: Float[Tensor, " embed_dim"],
    eps: float,
) -> Float[Tensor, "*batch embed_dim"]:
    """(x − mean) / √(variance + eps) · weight + bias with given statistics (document 001; Ioffe and Szegedy 2015)."""
    return ((upcast(x) - mean) / torch.sqrt(upcast(variance) + eps) * weight + bias).to(x.dtype)


def batch_statistics(
    x: Float[Tensor, "*batch embed_dim"],
) -> tuple[Float[Tensor, " embed_dim"], Float[Tensor, " embed_dim"]]:
    """Mean and variance (over n) of each feature over the batch and the positions."""
    variance, mean = torch.var_mean(x, dim=tuple(range(x.ndim - 1)), correction=0)
    return mean, variance


def running_average(
    old: Float[Tensor, " embed_dim"], new: Float[Tensor, " embed_dim"], momentum: float
) -> Float[Tensor, " embed_dim"]:
    """(1 − momentum) · old + momentum · new. Document 001 averages the variance over n; `torch.nn.BatchNorm1d`
    normalizes by it too, but averages the variance over n − 1."""
    return torch.lerp(old, new, momentum)


def gain(config: TransformerConfig, weight: Float[Tensor, " embed_dim"]) -> Float[Tensor, " embed_dim"]:
    """Gain of a norm: its weight, or 1 + its weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


class HeadNorm(nn.Module):
    """RMS norm of queries or keys, over so many features."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = _first_gain(config, features)

    def forward(self, x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)


class Norm(nn.Module):
    """Norm that `config.norm` names; in training, a batch norm taps its new `running_mean` and `running_var`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = _first_gain(config, config.embed_dim)
        if config.has_norm_bias:
            self.bias = nn.Parameter(torch.zeros(config.embed_dim))
        self.running_mean: Tensor
        self.running_var: Tensor
        if config.norm == "batch":
            self.register_buffer("running_mean", torch.zeros(config.embed_dim))
            self.register_buffer("running_var", torch.ones(config.embed_dim))

    def forward(self, x: Float[Tensor, "*batch embed_dim"], tap: Tap = identity) -> Float[Tensor, "*batch embed_dim"]:
        config, weight = self.config, gain(self.config, self.weight)
        if config.norm == "rms":
            return rms_norm(x, weight, config.norm_eps)
        bias = self.bias if config.norm_bias else torch.zeros_like(weight)
        if config.norm == "layer":
            return layer_norm(x, weight, bias, config.norm_eps)
        if config.norm == "layer-unbiased":
            return layer_norm_unbiased(x, weight, bias, config.norm_eps)
        mean, variance = self.running_mean, self.running_var
        if self.training:
            mean, variance = batch_statistics(x)
            with torch.no_grad():
                self.running_mean.copy_(running_average(self.running_mean, mean, config.norm_momentum))
                self.running_var.copy_(running_average(self.running_var, variance, config.norm_momentum))
            tap("running_mean", self.running_mean)
            tap("running_var", self.running_var)
        return batch_norm(x, weight, bias, mean, variance, config.norm_eps)


def _first_gain(config: TransformerConfig, features: int) -> nn.Parameter:
    """The weight of a norm whose gain is 1."""
    return nn.Parameter(torch.full((features,), float(config.norm_gain == "weight")))
