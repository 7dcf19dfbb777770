"""The norm of queries, keys and latents."""

from __future__ import annotations

from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.norms.gain import gain, initial_gain
from transparity_pytorch.norms.rms import rms_norm
from transparity_pytorch.shapes import Features


class HeadNorm(nn.Module):
    """RMS norm over the last axis: the features of one head or of all heads."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, features)

    def forward(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)
