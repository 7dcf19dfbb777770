"""A layer with parallel branches."""

from __future__ import annotations

from transparity.taps import Tap, identity
from transparity_pytorch.layers.layer import Layer, feed, mix, normalize
from transparity_pytorch.residuals import add_residual
from transparity_pytorch.shapes import Hidden
from transparity_pytorch.state.cache import Cache
from transparity_pytorch.state.context import LayerContext


class ParallelLayer(Layer):
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm per branch (GPT-NeoX) or one for both (GPT-J)."""

    def forward(self, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
        shared = normalize(self, "self_attention_norm", x, tap)
        y = mix(self, shared, context, tap, cache)
        z = normalize(self, "feed_forward_norm", x, tap) if self.config.branches == "parallel" else shared
        z = feed(self, z, tap)
        return tap("output", add_residual(self.config, add_residual(self.config, x, y), z))
