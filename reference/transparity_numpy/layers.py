"""Encoder and decoder layers: sublayers, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.config import NormPosition, TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_numpy.attention import keys_and_values, multi_head_attention
from transparity_numpy.cache import Cache
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.normalization import norm
from transparity_numpy.positions import NOWHERE, Places


def residual(
    x: Inexact[Array, "batch length embed_dim"],
    norm: Callable[[Array], Array],
    sublayer: Callable[[Array], Array],
    position: NormPosition,
    post_norm: Callable[[Array], Array],
) -> Inexact[Array, "batch length embed_dim"]:
    """x + sublayer(norm(x)) with the norm before (Xiong et al. 2020), norm(x + sublayer(x)) with it behind (Vaswani
    et al. 2017, §3.1), x + post_norm(sublayer(norm(x))) with two of them (Gemma 2)."""
    if position == "pre":
        return x + sublayer(norm(x))
    if position == "both":
        return x + post_norm(sublayer(norm(x)))
    return norm(x + sublayer(x))


def encoder_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"],
    mask: Bool[Array, "#batch 1 #length length"],
    tap: Tap = identity,
    *,
    at: Places = NOWHERE,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """Self-attention, then the feed-forward."""

    def normalize(name: str) -> Callable[[Array], Array]:
        return lambda x: tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))

    def attend_self(x: Array) -> Array:
        scope = scoped(tap, "self_attention")
        return multi_head_attention(config, parameters["self_attention"], x, x, mask, scope, at=at)

    def feed(x: Array) -> Array:
        return feed_forward(config, parameters["feed_forward"], x, scoped(tap, "feed_forward"))

    def add(x: Array, name: str, sublayer: Callable[[Array], Array]) -> Array:
        return residual(x, normalize(f"{name}_norm"), sublayer, config.norm_position, normalize(f"{name}_post_norm"))

    x = add(x, "self_attention", attend_self)
    x = add(x, "feed_forward", feed)
    return tap("output", x)


def decoder_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    memory: Inexact[Array, "batch memory embed_dim"] | None = None,
    memory_mask: Bool[Array, "#batch 1 1 memory"] | None = None,
    tap: Tap = identity,
    *,
    cache: Cache | None = None,
    positions: Int[Array, "batch queries"] | None = None,
    at: Places = NOWHERE,
    training: bool = False,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Self-attention, attention to `memory` (the encoder's output, if there is one), then the feed-forward.

    With a `cache`, `x` are tokens at `positions` that follow those in it; what the memory gives is in it, too.
    """
    cached = cache or {}

    def normalize(name: str) -> Callable[[Array], Array]:
        return lambda x: tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))

    def attend_self(x: Array) -> Array:
        scope, kept = scoped(tap, "self_attention"), cached.get("self_attention")
        return multi_head_attention(config, parameters["self_attention"], x, x, mask, scope, kept, positions, at)

    def attend_memory(x: Array) -> Array:
        assert memory_mask is not None
        scope, kept = scoped(tap, "cross_attention"), cached.get("cross_attention")
        seen = memory if memory is None or not config.memory_norm else normalize("memory_norm")(memory)
        return multi_head_attention(config, parameters["cross_attention"], x, seen, memory_mask, scope, kept)

    def feed(x: Array) -> Array:
        return feed_forward(config, parameters["feed_forward"], x, scoped(tap, "feed_forward"))

    def add(x: Array, name: str, sublayer: Callable[[Array], Array]) -> Array:
        return residual(x, normalize(f"{name}_norm"), sublayer, config.norm_position, normalize(f"{name}_post_norm"))

    x = add(x, "self_attention", attend_self)
    if memory is not None or "cross_attention" in cached:
        x = add(x, "cross_attention", attend_memory)
    x = add(x, "feed_forward", feed)
    return tap("output", x)


def memory_keys_and_values(
    config: TransformerConfig, parameters: Mapping[str, Any], memory: Inexact[Array, "batch keys embed_dim"]
) -> Cache:
    """The `key` and the `value` that a decoder layer makes of `memory`, whatever looks at them."""
    seen = norm(config, parameters["memory_norm"], memory) if config.memory_norm else memory
    key, value = keys_and_values(config, parameters["cross_attention"], seen)
    return {"key": key, "value": value}
