"""RMS norms of queries, keys and latent vectors."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_numpy.norms.norm import gain
from transparity_numpy.norms.variants import rms_norm
from transparity_numpy.rotary.plain import rotate
from transparity_numpy.shapes import Features, Heads, Parameters
from transparity_numpy.state.context import Context


def head_norm(config: TransformerConfig, parameters: Parameters, x: Features) -> Features:
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""
    return rms_norm(x, gain(config, parameters["weight"]), config.norm_eps)


def query_key_norm(config: TransformerConfig, parameters: Parameters, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return head_norm(config, parameters, x)
    rows = x.swapaxes(1, 2)
    return head_norm(config, parameters, rows.reshape(*rows.shape[:2], -1)).reshape(rows.shape).swapaxes(1, 2)


def normalize_and_rotate(
    config: TransformerConfig, parameters: Parameters, name: str, x: Heads, context: Context
) -> Heads:
    """Apply the QK norm and the rotation, if the configuration has them, to the `query` or `key` of attention."""
    tap, rotary = context.tap, context.rotary
    if config.query_key_norm:
        x = tap(f"{name}_norm", query_key_norm(config, parameters[f"{name}_norm"], x))
    return x if rotary is None else tap(f"{name}_rotated", rotate(x, rotary, config.rope_layout))
