"""A layer: self-attention, cross-attention in a decoder with a memory, and the feed-forward, each with its residual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.experts import MixtureOfExperts
from transparity_flax.feed_forward import FeedForward
from transparity_flax.mixers.attention import CrossAttention, project_key_value
from transparity_flax.mixers.table import MIXERS
from transparity_flax.normalization import Norm
from transparity_flax.residuals import RESIDUALS, Sublayer, add_residual
from transparity_flax.shapes import Hidden, Memory
from transparity_flax.state.cache import Cache
from transparity_flax.state.context import LayerContext


def normalize(module: nnx.Module, name: str, x: Hidden, tap: Tap = identity) -> Hidden:
    """Apply the norm `name` of a layer or stack, and tap it under its name."""
    return tap(name, getattr(module, name)(x, scoped(tap, name)))


def residual(module: Layer, name: str, x: Hidden, sublayer: Sublayer, tap: Tap = identity) -> Hidden:
    """x + the sublayer `name` of x, with its norms where `config.norm_position` puts them."""
    norms = [partial(_norm, module, f"{name}_{end}", tap) for end in ("norm", "post_norm")]
    return RESIDUALS[module.config.norm_position](module.config, x, sublayer, *norms)


def mix(module: Layer, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
    """Self-attention, or what `config.mixer_name` names in its place."""
    scope = module.config.mixer_scope
    return getattr(module, scope)(x, context, scoped(tap, scope), (cache or {}).get(scope))


def feed(module: Layer, x: Hidden, tap: Tap = identity) -> Hidden:
    """The feed-forward, or a mixture of experts."""
    return module.feed_forward(x, scoped(tap, "feed_forward"))


def attend_to_memory(
    module: Layer, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None
) -> Hidden:
    """Cross-attention to the encoder's output, through a norm if `memory_norm` is set."""
    if module.config.memory_norm and context.memory is not None:
        context = context._replace(memory=normalize(module, "memory_norm", context.memory, tap))
    scope, kept = scoped(tap, "cross_attention"), (cache or {}).get("cross_attention")
    return module.cross_attention(x, context, scope, kept)


class Layer(nnx.Module):
    """Self-attention, cross-attention if there is a memory, then the feed-forward, if any, each with its residual.

    With a `cache`, `x` are the tokens at `context.positions` that follow those in it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, has_memory: bool = False) -> None:
        self.config = config
        setattr(self, config.mixer_scope, MIXERS[config.mixer_name](config, rngs=rngs))
        if has_memory:
            self.cross_attention = CrossAttention(config, rngs=rngs)
        if config.feed_forward_dim:
            self.feed_forward = (MixtureOfExperts if config.num_experts else FeedForward)(config, rngs=rngs)
        for name in _norms(config, has_memory):
            setattr(self, name, Norm(config, rngs=rngs))

    def __call__(self, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
        add = partial(residual, self, tap=tap)
        x = add("self_attention", x, lambda x: mix(self, x, context, tap, cache))
        if context.memory_mask is not None:
            x = add("cross_attention", x, lambda x: attend_to_memory(self, x, context, tap, cache))
        if self.config.feed_forward_dim:
            x = add("feed_forward", x, lambda x: feed(self, x, tap))
        return tap("output", x)


class ParallelLayer(Layer):
    """x + attention(norm(x)) + feed_forward(norm(x)): the branches have a norm each (GPT-NeoX) or share one (GPT-J)."""

    def __call__(self, x: Hidden, context: LayerContext, tap: Tap = identity, cache: Cache | None = None) -> Hidden:
        config, normed = self.config, partial(normalize, self, tap=tap)
        shared = normed("self_attention_norm", x)
        y = mix(self, shared, context, tap, cache)
        z = normed("feed_forward_norm", x) if config.branches == "parallel" else shared
        z = feed(self, z, tap)
        return tap("output", add_residual(config, add_residual(config, x, y), z))


def cross_attention_cache(module: Layer, memory: Memory) -> Cache:
    """Keys and values of a layer's cross-attention, for every later step."""
    if module.config.memory_norm:
        memory = normalize(module, "memory_norm", memory)
    key, value = project_key_value(module.cross_attention, memory, identity)
    return {"key": key, "value": value}


LAYERS: dict[str, Callable[..., Layer]] = {
    "sequential": Layer,
    "parallel": ParallelLayer,
    "parallel-one-norm": ParallelLayer,
}
"""By `config.branches`."""


def _norms(config: TransformerConfig, has_memory: bool) -> list[str]:
    """The names of a layer's norms."""
    feeds, sandwich = config.feed_forward_dim > 0, config.norm_position == "sandwich"
    has = {
        "self_attention_norm": config.attention_norm,
        "cross_attention_norm": has_memory,
        "memory_norm": has_memory and config.memory_norm,
        "feed_forward_norm": feeds and config.branches != "parallel-one-norm",
        "self_attention_post_norm": sandwich,
        "cross_attention_post_norm": sandwich and has_memory,
        "feed_forward_post_norm": sandwich and feeds,
    }
    return [name for name, is_there in has.items() if is_there]


def _norm(module: Layer, name: str, tap: Tap, x: Hidden) -> Hidden:
    """The norm `name` of a sublayer; x itself before attention without one (ModernBERT's first layer)."""
    return x if name == "self_attention_norm" and not module.config.attention_norm else normalize(module, name, x, tap)
