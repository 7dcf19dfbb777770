"""A layer: self-attention, cross-attention if there is an encoder's output, and a feed-forward, each with its
residual."""

from __future__ import annotations

from functools import partial

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.experts import MixtureOfExperts
from transparity_flax.feed_forward import FeedForward
from transparity_flax.mixers.attention import CrossAttention
from transparity_flax.mixers.table import MIXERS
from transparity_flax.norms.table import Norm
from transparity_flax.residuals import RESIDUALS, Sublayer
from transparity_flax.shapes import Hidden
from transparity_flax.state.cache import Cache
from transparity_flax.state.context import LayerContext


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
