"""The norm of queries, keys and latent vectors."""

from __future__ import annotations

from flax import nnx

from transparity.config import TransformerConfig
from transparity_flax.norms.gain import gain, initial_gain
from transparity_flax.norms.rms import rms_norm
from transparity_flax.shapes import Features


class HeadNorm(nnx.Module):
    """RMS norm over the last axis, which has the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = initial_gain(config, features)

    def __call__(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.scale[...]), self.config.norm_eps)
