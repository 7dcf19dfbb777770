"""Layers whose mixer and feed-forward are parallel branches."""

from __future__ import annotations

from transparity_pytorch.layers.sequential import Layer, add_residual, feed, mix, normalize
from transparity_pytorch.shapes import Hidden
from transparity_pytorch.state.context import Context


class ParallelLayer(Layer):
    """x + attention(norm(x)) + feed_forward(norm(x)), with one norm per branch (GPT-NeoX) or a shared norm (GPT-J)."""

    def forward(self, x: Hidden, context: Context) -> Hidden:
        shared = normalize(self, "self_attention_norm", x, context)
        y = mix(self, shared, context)
        z = normalize(self, "feed_forward_norm", x, context) if self.config.branches == "parallel" else shared
        z = feed(self, z, context)
        return context.tap("output", add_residual(self.config, add_residual(self.config, x, y), z))
