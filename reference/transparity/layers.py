"""Encoder and decoder layers: sublayers, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Bool, Inexact
from numpy import ndarray as Array

from transparity.attention import multi_head_attention
from transparity.config import NormPosition, TransformerConfig
from transparity.feed_forward import feed_forward
from transparity.normalization import norm
from transparity.taps import Tap, identity, scoped


def residual(
    x: Inexact[Array, "batch length embed_dim"],
    norm: Callable[[Array], Array],
    sublayer: Callable[[Array], Array],
    position: NormPosition,
) -> Inexact[Array, "batch length embed_dim"]:
    """x + sublayer(norm(x)) with the norm before (Xiong et al. 2020), norm(x + sublayer(x)) with it behind (Vaswani
    et al. 2017, §3.1)."""
    if position == "pre":
        return x + sublayer(norm(x))
    return norm(x + sublayer(x))


def encoder_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"],
    mask: Bool[Array, "#batch 1 #length length"],
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """Self-attention, then the feed-forward."""

    def normalize(name: str) -> Callable[[Array], Array]:
        return lambda x: tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))

    def attend_self(x: Array) -> Array:
        return multi_head_attention(config, parameters["self_attention"], x, x, mask, scoped(tap, "self_attention"))

    def feed(x: Array) -> Array:
        return feed_forward(config, parameters["feed_forward"], x, scoped(tap, "feed_forward"))

    x = residual(x, normalize("self_attention_norm"), attend_self, config.norm_position)
    x = residual(x, normalize("feed_forward_norm"), feed, config.norm_position)
    return tap("output", x)


def decoder_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    mask: Bool[Array, "#batch 1 #queries queries"],
    memory: Inexact[Array, "batch keys embed_dim"] | None = None,
    memory_mask: Bool[Array, "#batch 1 1 keys"] | None = None,
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Self-attention, attention to `memory` (the encoder's output, if there is one), then the feed-forward."""

    def normalize(name: str) -> Callable[[Array], Array]:
        return lambda x: tap(name, norm(config, parameters[name], x, scoped(tap, name), training=training))

    def attend_self(x: Array) -> Array:
        return multi_head_attention(config, parameters["self_attention"], x, x, mask, scoped(tap, "self_attention"))

    def attend_memory(x: Array) -> Array:
        assert memory is not None and memory_mask is not None
        seen = normalize("memory_norm")(memory) if config.memory_norm else memory
        return multi_head_attention(
            config, parameters["cross_attention"], x, seen, memory_mask, scoped(tap, "cross_attention")
        )

    def feed(x: Array) -> Array:
        return feed_forward(config, parameters["feed_forward"], x, scoped(tap, "feed_forward"))

    x = residual(x, normalize("self_attention_norm"), attend_self, config.norm_position)
    if memory is not None:
        x = residual(x, normalize("cross_attention_norm"), attend_memory, config.norm_position)
    x = residual(x, normalize("feed_forward_norm"), feed, config.norm_position)
    return tap("output", x)
