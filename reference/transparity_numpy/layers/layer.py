"""A layer: self-attention, cross-attention if there is an encoder's output, and a feed-forward, each with its
residual."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_numpy.experts import mixture_of_experts
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.mixers.attention import cross_attention
from transparity_numpy.mixers.table import MIXERS
from transparity_numpy.norms.table import norm
from transparity_numpy.residuals import RESIDUALS, Sublayer
from transparity_numpy.shapes import Hidden
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext


def normalize(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Hidden,
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Hidden:
    """Apply the norm `name` of a layer or stack, and tap the result under this name."""
    return tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))


def residual(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Hidden,
    sublayer: Sublayer,
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Hidden:
    """x + sublayer(x), with the norms of the sublayer `name` at the places that `config.norm_position` names."""
    norms = [partial(_norm, config, parameters, f"{name}_{end}", tap, training) for end in ("norm", "post_norm")]
    return RESIDUALS[config.norm_position](config, x, sublayer, *norms)


def mix(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Hidden,
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Hidden:
    """Apply the layer's mixer: self-attention, or another that `config.mixer_name` names."""
    scope, kept = scoped(tap, config.mixer_scope), (cache or {}).get(config.mixer_scope)
    return MIXERS[config.mixer_name](config, parameters[config.mixer_scope], x, context, scope, kept)


def feed(config: TransformerConfig, parameters: Mapping[str, Any], x: Hidden, tap: Tap = identity) -> Hidden:
    """Apply the feed-forward, or the mixture of experts."""
    function = mixture_of_experts if config.num_experts else feed_forward
    return function(config, parameters["feed_forward"], x, scoped(tap, "feed_forward"))


def attend_to_memory(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Hidden,
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Hidden:
    """Apply cross-attention to the encoder's output, which is normalized first if `memory_norm` is set."""
    if config.memory_norm and context.memory is not None:
        memory = normalize(config, parameters, "memory_norm", context.memory, tap, training=context.training)
        context = context._replace(memory=memory)
    scope, kept = scoped(tap, "cross_attention"), (cache or {}).get("cross_attention")
    return cross_attention(config, parameters["cross_attention"], x, context, scope, kept)


def layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Hidden,
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Hidden:
    """Self-attention or another mixer, then cross-attention if there is an encoder, then the feed-forward.

    Each has its residual. With a `cache`, `x` has the tokens at `context.positions`, which follow the cached tokens.
    """
    add = partial(residual, config, parameters, tap=tap, training=context.training)
    x = add("self_attention", x, lambda x: mix(config, parameters, x, context, tap, cache))
    if context.memory_mask is not None:
        x = add("cross_attention", x, lambda x: attend_to_memory(config, parameters, x, context, tap, cache))
    if config.feed_forward_dim:
        x = add("feed_forward", x, lambda x: feed(config, parameters, x, tap))
    return tap("output", x)


def _norm(
    config: TransformerConfig, parameters: Mapping[str, Any], name: str, tap: Tap, training: bool, x: Hidden
) -> Hidden:
    """Return the norm `name` of x; before attention without a norm (ModernBERT's first layer), return x unchanged."""
    if name == "self_attention_norm" and not config.attention_norm:
        return x
    return normalize(config, parameters, name, x, tap, training=training)
