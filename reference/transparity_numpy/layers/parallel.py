"""A layer with parallel branches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.layers.layer import feed, mix, normalize
from transparity_numpy.residuals import add_residual
from transparity_numpy.shapes import Hidden
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext


def parallel_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Hidden,
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Hidden:
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm per branch (GPT-NeoX) or one for both (GPT-J)."""
    normed = partial(normalize, config, parameters, tap=tap, training=context.training)
    shared = normed("self_attention_norm", x)
    y = mix(config, parameters, shared, context, tap, cache)
    z = normed("feed_forward_norm", x) if config.branches == "parallel" else shared
    z = feed(config, parameters, z, tap)
    return tap("output", add_residual(config, add_residual(config, x, y), z))
