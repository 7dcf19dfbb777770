"""A layer: self-attention, cross-attention in a decoder with a memory, and the feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_numpy.attention import cross_attention, project_key_value, self_attention
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.mixture.experts import mixture_of_experts
from transparity_numpy.normalization import norm
from transparity_numpy.recurrent.recurrence import recurrence
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext


def normalize(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Inexact[Array, "batch length embed_dim"],
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """Apply the norm `name` of a layer or stack, and tap it under its name."""
    return tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))


def add_residual(
    config: TransformerConfig, x: Inexact[Array, "batch length embed_dim"], y: Inexact[Array, "batch length embed_dim"]
) -> Inexact[Array, "batch length embed_dim"]:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * x.dtype.type(config.residual_multiplier)


def sublayer_input(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Inexact[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
) -> Inexact[Array, "batch length embed_dim"]:
    """norm(x) with the norm first (`pre`, Xiong et al. 2020; `sandwich`, Gemma 2), else x; x before attention without
    a norm (ModernBERT's first layer)."""
    if config.norm_position in ("post", "post-branch") or (name == "self_attention" and not config.attention_norm):
        return x
    return normalize(config, parameters, f"{name}_norm", x, tap, training=context.training)


def sublayer_output(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Inexact[Array, "batch length embed_dim"],
    y: Inexact[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
) -> Inexact[Array, "batch length embed_dim"]:
    """Add the residual x to a sublayer's result y: x + y (`pre`), norm(x + y) (`post`, Vaswani et al. 2017, §3.1), or
    x + norm(y) (`sandwich`; `post-branch`, OLMo 2)."""
    if config.norm_position == "pre":
        return add_residual(config, x, y)
    if config.norm_position in ("sandwich", "post-branch"):
        behind = f"{name}_post_norm" if config.norm_position == "sandwich" else f"{name}_norm"
        y = normalize(config, parameters, behind, y, tap, training=context.training)
        return add_residual(config, x, y)
    return normalize(config, parameters, f"{name}_norm", add_residual(config, x, y), tap, training=context.training)


def layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Self-attention, cross-attention if there is a memory, then the feed-forward, if any; or attention and
    feed-forward as parallel branches (GPT-J, GPT-NeoX).

    With a `cache`, `x` are the tokens at `context.positions` that follow those in it.
    """
    caches = cache or {}
    feed = mixture_of_experts if config.num_experts else feed_forward
    normed = sublayer_input(config, parameters, "self_attention", x, context, tap)
    scope, kept = scoped(tap, config.mixer_scope), caches.get(config.mixer_scope)
    mix = self_attention if config.mixer == "attention" else recurrence
    y = mix(config, parameters[config.mixer_scope], normed, context, scope, kept)
    if config.branches != "sequential":
        own = config.branches == "parallel"
        z = sublayer_input(config, parameters, "feed_forward", x, context, tap) if own else normed
        z = feed(config, parameters["feed_forward"], z, scoped(tap, "feed_forward"))
        return tap("output", add_residual(config, add_residual(config, x, y), z))
    x = sublayer_output(config, parameters, "self_attention", x, y, context, tap)
    if context.memory_mask is not None:
        y = sublayer_input(config, parameters, "cross_attention", x, context, tap)
        if config.memory_norm and context.memory is not None:
            memory = normalize(config, parameters, "memory_norm", context.memory, tap, training=context.training)
            context = context._replace(memory=memory)
        scope, kept = scoped(tap, "cross_attention"), caches.get("cross_attention")
        y = cross_attention(config, parameters["cross_attention"], y, context, scope, kept)
        x = sublayer_output(config, parameters, "cross_attention", x, y, context, tap)
    if not config.feed_forward_dim:
        return tap("output", x)
    y = sublayer_input(config, parameters, "feed_forward", x, context, tap)
    y = feed(config, parameters["feed_forward"], y, scoped(tap, "feed_forward"))
    x = sublayer_output(config, parameters, "feed_forward", x, y, context, tap)
    return tap("output", x)


def cross_attention_cache(
    config: TransformerConfig, parameters: Mapping[str, Any], memory: Inexact[Array, "batch keys embed_dim"]
) -> Cache:
    """Keys and values of a layer's cross-attention, for every later step."""
    if config.memory_norm:
        memory = normalize(config, parameters, "memory_norm", memory)
    key, value = project_key_value(config, parameters["cross_attention"], memory)
    return {"key": key, "value": value}
