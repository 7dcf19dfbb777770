"""Layers: a mixer, cross-attention if there is an encoder, and a feed-forward, each with its residual and norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.experts import MixtureOfExperts
from transparity_flax.feed_forward import FeedForward
from transparity_flax.mixers.attention import CrossAttention, SelfAttention
from transparity_flax.mixers.gated_delta import GatedDelta
from transparity_flax.mixers.latent import LatentAttention
from transparity_flax.mixers.state_space import StateSpace
from transparity_flax.norms.table import Norm
from transparity_flax.shapes import Hidden
from transparity_flax.state.cache import Cache
from transparity_flax.state.context import LayerContext

Sublayer = Callable[[Hidden], Hidden]


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * config.residual_multiplier


def pre(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """x + f(norm(x)) (Xiong et al. 2020)."""
    return add_residual(config, x, sublayer(norm(x)))


def post(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """norm(x + f(x)) (Vaswani et al. 2017, §3.1)."""
    return norm(add_residual(config, x, sublayer(x)))


def sandwich(config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer) -> Hidden:
    """x + post_norm(f(norm(x))) (Gemma 2)."""
    return add_residual(config, x, post_norm(sublayer(norm(x))))


def post_branch(
    config: TransformerConfig, x: Hidden, sublayer: Sublayer, norm: Sublayer, post_norm: Sublayer
) -> Hidden:
    """x + norm(f(x)) (OLMo 2)."""
    return add_residual(config, x, norm(sublayer(x)))


RESIDUALS = {"pre": pre, "post": post, "sandwich": sandwich, "post-branch": post_branch}
"""The function for each `config.norm_position`."""


MIXERS: dict[str, Callable[..., Any]] = {
    "attention": SelfAttention,
    "latent": LatentAttention,
    "gated-delta": GatedDelta,
    "state-space": StateSpace,
}
"""The function for each `config.mixer_name`."""


def normalize(module: nnx.Module, name: str, x: Hidden, tap: Tap = identity) -> Hidden:
    """Apply the norm `name` of a layer or stack, and tap the result under this name."""
    return tap(name, getattr(module, name)(x, scoped(tap, name)))


def residual(layer: Layer, name: str, x: Hidden, sublayer: Sublayer, tap: Tap = identity) -> Hidden:
    """x + sublayer(x), with the norms of the sublayer `name` at the places that `config.norm_position` names."""
    norms = [partial(_norm, layer, f"{name}_{end}", tap) for end in ("norm", "post_norm")]
    return RESIDUALS[layer.config.norm_position](layer.config, x, sublayer, *norms)


def mix(layer: Layer, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
    """Apply the layer's mixer: self-attention, or another that `config.mixer_name` names."""
    scope = layer.config.mixer_scope
    return getattr(layer, scope)(x, context, scoped(tap, scope), (cache or {}).get(scope))


def feed(layer: Layer, x: Hidden, tap: Tap = identity) -> Hidden:
    """Apply the feed-forward, or the mixture of experts."""
    return layer.feed_forward(x, scoped(tap, "feed_forward"))


def attend_to_memory(
    layer: Layer, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None
) -> Hidden:
    """Apply cross-attention to the encoder's output, which is normalized first if `memory_norm` is set."""
    if layer.config.memory_norm and context.memory is not None:
        context = context._replace(memory=normalize(layer, "memory_norm", context.memory, tap))
    scope, kept = scoped(tap, "cross_attention"), (cache or {}).get("cross_attention")
    return layer.cross_attention(x, context, scope, kept)


class Layer(nnx.Module):
    """Self-attention or another mixer, then cross-attention if there is an encoder, then the feed-forward.

    Each has its residual. With a `cache`, `x` has the tokens at `context.positions`, which follow the cached tokens.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, has_memory: bool = False) -> None:
        self.config = config
        setattr(self, config.mixer_scope, MIXERS[config.mixer_name](config, rngs=rngs))
        self._add_norms("self_attention", rngs, exists=config.attention_norm)
        if has_memory:
            self.cross_attention = CrossAttention(config, rngs=rngs)
            self._add_norms("cross_attention", rngs)
        if has_memory and config.memory_norm:
            self.memory_norm = Norm(config, rngs=rngs)
        if config.feed_forward_dim:
            self.feed_forward = (MixtureOfExperts if config.num_experts else FeedForward)(config, rngs=rngs)
            self._add_norms("feed_forward", rngs, exists=config.branches != "parallel-one-norm")

    def _add_norms(self, sublayer: str, rngs: nnx.Rngs, *, exists: bool = True) -> None:
        if exists:
            setattr(self, f"{sublayer}_norm", Norm(self.config, rngs=rngs))
        if self.config.norm_position == "sandwich":
            setattr(self, f"{sublayer}_post_norm", Norm(self.config, rngs=rngs))

    def __call__(self, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
        x = residual(self, "self_attention", x, lambda x: mix(self, x, context, tap, cache), tap)
        if context.memory_mask is not None:
            x = residual(self, "cross_attention", x, lambda x: attend_to_memory(self, x, context, tap, cache), tap)
        if self.config.feed_forward_dim:
            x = residual(self, "feed_forward", x, lambda x: feed(self, x, tap), tap)
        return tap("output", x)


def _norm(layer: Layer, name: str, tap: Tap, x: Hidden) -> Hidden:
    """Return the norm `name` of x; before attention without a norm (ModernBERT's first layer), return x unchanged."""
    return x if name == "self_attention_norm" and not layer.config.attention_norm else normalize(layer, name, x, tap)


class ParallelLayer(Layer):
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm per branch (GPT-NeoX) or one for both (GPT-J)."""

    def __call__(self, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
        shared = normalize(self, "self_attention_norm", x, tap)
        y = mix(self, shared, context, tap, cache)
        z = normalize(self, "feed_forward_norm", x, tap) if self.config.branches == "parallel" else shared
        z = feed(self, z, tap)
        return tap("output", add_residual(self.config, add_residual(self.config, x, y), z))


LAYERS: dict[str, type[Layer]] = {"sequential": Layer, "parallel": ParallelLayer, "parallel-one-norm": ParallelLayer}
"""The function for each `config.branches`."""
