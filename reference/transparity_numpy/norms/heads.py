"""RMS norms of the features of heads: of queries, of keys, and of latent vectors."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_numpy.norms.norm import gain, rms_norm
from transparity_numpy.shapes import Features, Heads, Parameters


def head_norm(config: TransformerConfig, parameters: Parameters, x: Features) -> Features:
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""
    return rms_norm(x, gain(config, parameters["weight"]), config.norm_eps)


def query_key_norm(config: TransformerConfig, parameters: Parameters, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return head_norm(config, parameters, x)
    rows = x.swapaxes(1, 2)
    return head_norm(config, parameters, rows.reshape(*rows.shape[:2], -1)).reshape(rows.shape).swapaxes(1, 2)
