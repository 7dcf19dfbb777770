"""Layers: a mixer, cross-attention if there is an encoder, and a feed-forward, each with its residual and norms."""

from __future__ import annotations

from collections.abc import Callable

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import scoped
from transparity_flax.experts import MixtureOfExperts
from transparity_flax.feed_forward import FeedForward
from transparity_flax.mixers import MIXERS
from transparity_flax.mixers.attention import CrossAttention
from transparity_flax.norms.norm import Norm
from transparity_flax.shapes import Hidden
from transparity_flax.state.context import Context

NORMS_AT: dict[str, dict[str, str]] = {
    "pre": {"before": "norm"},
    "post": {"after": "norm"},
    "sandwich": {"before": "norm", "between": "post_norm"},
    "post-branch": {"between": "norm"},
}
"""The norms before a sublayer f, `between` f(x) and the residual sum, and after the sum, by `config.norm_position`. The
position is `post` in Vaswani et al. 2017, §3.1, and `pre` in Xiong et al. 2020."""


def normalize(module: nnx.Module, name: str, x: Hidden, context: Context) -> Hidden:
    """Apply the norm `name` of a layer or stack, and pass the result to the tap function."""
    return context.tap(name, getattr(module, name)(x, scoped(context.tap, name)))


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    return x + y if config.residual_multiplier == 1 else x + y * config.residual_multiplier


def normed(layer: Layer, name: str, place: str, x: Hidden, context: Context) -> Hidden:
    """Apply the norm of the sublayer `name` at `place`, such as `before` (`NORMS_AT`); without a norm, return `x`."""
    norms = NORMS_AT[layer.config.norm_position] if layer.config.attention_norm or name != "self_attention" else {}
    return normalize(layer, f"{name}_{norms[place]}", x, context) if place in norms else x


def mix(layer: Layer, x: Hidden, context: Context) -> Hidden:
    """Apply the layer's mixer: self-attention, or the mixer that `config.mixer_name` names."""
    scope = layer.config.mixer_scope
    return getattr(layer, scope)(x, context.under(scope))


def attend_to_memory(layer: Layer, x: Hidden, context: Context) -> Hidden:
    """Apply cross-attention to the encoder's output, which is normalized first if `memory_norm` is set."""
    if layer.config.memory_norm and context.memory is not None:
        context = context._replace(memory=normalize(layer, "memory_norm", context.memory, context))
    return layer.cross_attention(x, context.under("cross_attention"))


def feed(layer: Layer, x: Hidden, context: Context) -> Hidden:
    return layer.feed_forward(x, scoped(context.tap, "feed_forward"))


def residual(layer: Layer, name: str, x: Hidden, context: Context, sublayer: Callable[..., Hidden]) -> Hidden:
    """after(x + between(sublayer(before(x)))), with the norms of `NORMS_AT`; an absent norm is the identity."""
    y = sublayer(layer, normed(layer, name, "before", x, context), context)
    y = normed(layer, name, "between", y, context)
    return normed(layer, name, "after", add_residual(layer.config, x, y), context)


class Layer(nnx.Module):
    """A mixer, cross-attention if there is an encoder, and a feed-forward, each with its own residual connection.

    With the norms of Vaswani et al. 2017: x = norm(x + self_attention(x)), x = norm(x + cross_attention(x)), and
    x = norm(x + feed_forward(x)). With a cache, `x` has only the new tokens, which follow the cached tokens.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, has_memory: bool = False) -> None:
        self.config = config
        setattr(self, config.mixer_scope, MIXERS[config.mixer_name](config, rngs=rngs))
        if config.attention_norm:
            self._add_norms("self_attention", rngs)
        if has_memory:
            self.cross_attention = CrossAttention(config, rngs=rngs)
            self._add_norms("cross_attention", rngs)
        if has_memory and config.memory_norm:
            self.memory_norm = Norm(config, rngs=rngs)
        if config.feed_forward_dim:
            self.feed_forward = (MixtureOfExperts if config.num_experts else FeedForward)(config, rngs=rngs)
        if config.feed_forward_dim and config.branches != "parallel-one-norm":
            self._add_norms("feed_forward", rngs)

    def _add_norms(self, sublayer: str, rngs: nnx.Rngs) -> None:
        for end in NORMS_AT[self.config.norm_position].values():
            setattr(self, f"{sublayer}_{end}", Norm(self.config, rngs=rngs))

    def __call__(self, x: Hidden, context: Context) -> Hidden:
        x = residual(self, "self_attention", x, context, mix)
        if context.memory_mask is not None:
            x = residual(self, "cross_attention", x, context, attend_to_memory)
        if self.config.feed_forward_dim:
            x = residual(self, "feed_forward", x, context, feed)
        return context.tap("output", x)
