"""The table of norms: each norm has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.norms.batch import batch_norm, statistics
from transparity_pytorch.norms.gain import gain, initial_gain
from transparity_pytorch.norms.layer import layer_norm
from transparity_pytorch.norms.rms import rms_norm
from transparity_pytorch.norms.unbiased import layer_norm_unbiased
from transparity_pytorch.shapes import Vectors

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
