"""Layers whose mixer and feed-forward are parallel branches."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_numpy.layers.sequential import add_residual, feed, mix, normalize
from transparity_numpy.shapes import Hidden, Parameters
from transparity_numpy.state.context import Context


def parallel_layer(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """x + attention(norm(x)) + feed_forward(norm(x)), with one norm per branch (GPT-NeoX) or a shared norm (GPT-J)."""
    shared = normalize(config, parameters, "self_attention_norm", x, context)
    y = mix(config, parameters, shared, context)
    z = normalize(config, parameters, "feed_forward_norm", x, context) if config.branches == "parallel" else shared
    z = feed(config, parameters, z, context)
    return context.tap("output", add_residual(config, add_residual(config, x, y), z))
