"""RMS norms of the features of heads: of queries, of keys, and of latent vectors."""

from __future__ import annotations

from flax import nnx

from transparity.config import TransformerConfig
from transparity_flax.norms.norm import gain, initial_gain, rms_norm
from transparity_flax.shapes import Features, Heads


class HeadNorm(nnx.Module):
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = initial_gain(config, features)

    def __call__(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.scale[...]), self.config.norm_eps)


def query_key_norm(config: TransformerConfig, norm: HeadNorm, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return norm(x)
    rows = x.swapaxes(1, 2)
    return norm(rows.reshape(*rows.shape[:2], -1)).reshape(rows.shape).swapaxes(1, 2)
