"""The norm of queries, keys and latent vectors."""

from __future__ import annotations

from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.norms.gain import gain, initial_gain
from transparity_pytorch.norms.rms import rms_norm
from transparity_pytorch.shapes import Features


class HeadNorm(nn.Module):
    """RMS norm over the last axis, which has the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, features)

    def forward(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)
