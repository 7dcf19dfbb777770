"""Encoder and decoder layers: sublayers, each with a residual and a norm."""

from __future__ import annotations

from collections.abc import Callable

from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import NormPosition, TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.attention import MultiHeadAttention, keys_and_values
from transparity_flax.cache import Cache
from transparity_flax.feed_forward import FeedForward
from transparity_flax.normalization import Norm
from transparity_flax.positions import NOWHERE, Places


def residual(
    x: Float[Array, "batch length embed_dim"],
    norm: Callable[[Array], Array],
    sublayer: Callable[[Array], Array],
    position: NormPosition,
    post_norm: Callable[[Array], Array],
) -> Float[Array, "batch length embed_dim"]:
    """x + sublayer(norm(x)) with the norm before (Xiong et al. 2020), norm(x + sublayer(x)) with it behind (Vaswani
    et al. 2017, §3.1), x + post_norm(sublayer(norm(x))) with two of them (Gemma 2)."""
    if position == "pre":
        return x + sublayer(norm(x))
    if position == "both":
        return x + post_norm(sublayer(norm(x)))
    return norm(x + sublayer(x))


class EncoderLayer(nnx.Module):
    """Self-attention, then the feed-forward."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.self_attention_norm = Norm(config, rngs=rngs)
        if config.norm_position == "both":
            self.self_attention_post_norm = Norm(config, rngs=rngs)
            self.feed_forward_post_norm = Norm(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_norm = Norm(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch length embed_dim"],
        mask: Bool[Array, "#batch 1 #length length"],
        tap: Tap = identity,
        *,
        at: Places = NOWHERE,
    ) -> Float[Array, "batch length embed_dim"]:
        def normalize(name: str) -> Callable[[Array], Array]:
            return lambda x: tap(name, getattr(self, name)(x, scoped(tap, name)))

        def attend_self(x: Array) -> Array:
            return self.self_attention(x, x, mask, scoped(tap, "self_attention"), at=at)

        def feed(x: Array) -> Array:
            return self.feed_forward(x, scoped(tap, "feed_forward"))

        def add(x: Array, name: str, sublayer: Callable[[Array], Array]) -> Array:
            position, behind = self.config.norm_position, normalize(f"{name}_post_norm")
            return residual(x, normalize(f"{name}_norm"), sublayer, position, behind)

        x = add(x, "self_attention", attend_self)
        x = add(x, "feed_forward", feed)
        return tap("output", x)


class DecoderLayer(nnx.Module):
    """Self-attention, attention to `memory` (the encoder's output, if there is one), then the feed-forward.

    With a `cache`, `x` are tokens at `positions` that follow those in it; what the memory gives is in it, too.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.self_attention = MultiHeadAttention(config, rngs=rngs)
        self.self_attention_norm = Norm(config, rngs=rngs)
        if config.norm_position == "both":
            self.self_attention_post_norm = Norm(config, rngs=rngs)
            self.feed_forward_post_norm = Norm(config, rngs=rngs)
        if config.has_encoder:
            self.cross_attention = MultiHeadAttention(config, rngs=rngs)
            self.cross_attention_norm = Norm(config, rngs=rngs)
            if config.norm_position == "both":
                self.cross_attention_post_norm = Norm(config, rngs=rngs)
            if config.memory_norm:
                self.memory_norm = Norm(config, rngs=rngs)
        self.feed_forward = FeedForward(config, rngs=rngs)
        self.feed_forward_norm = Norm(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch queries embed_dim"],
        mask: Bool[Array, "#batch 1 #queries keys"],
        memory: Float[Array, "batch memory embed_dim"] | None = None,
        memory_mask: Bool[Array, "#batch 1 1 memory"] | None = None,
        tap: Tap = identity,
        *,
        cache: Cache | None = None,
        positions: Int[Array, "batch queries"] | None = None,
        at: Places = NOWHERE,
    ) -> Float[Array, "batch queries embed_dim"]:
        cached = cache or {}

        def normalize(name: str) -> Callable[[Array], Array]:
            return lambda x: tap(name, getattr(self, name)(x, scoped(tap, name)))

        def attend_self(x: Array) -> Array:
            scope, kept = scoped(tap, "self_attention"), cached.get("self_attention")
            return self.self_attention(x, x, mask, scope, kept, positions, at)

        def attend_memory(x: Array) -> Array:
            assert memory_mask is not None
            scope, kept = scoped(tap, "cross_attention"), cached.get("cross_attention")
            seen = memory if memory is None or not self.config.memory_norm else normalize("memory_norm")(memory)
            return self.cross_attention(x, seen, memory_mask, scope, kept)

        def feed(x: Array) -> Array:
            return self.feed_forward(x, scoped(tap, "feed_forward"))

        def add(x: Array, name: str, sublayer: Callable[[Array], Array]) -> Array:
            position, behind = self.config.norm_position, normalize(f"{name}_post_norm")
            return residual(x, normalize(f"{name}_norm"), sublayer, position, behind)

        x = add(x, "self_attention", attend_self)
        if memory is not None or "cross_attention" in cached:
            x = add(x, "cross_attention", attend_memory)
        x = add(x, "feed_forward", feed)
        return tap("output", x)


def memory_keys_and_values(layer: DecoderLayer, memory: Float[Array, "batch keys embed_dim"]) -> Cache:
    """The `key` and the `value` that a decoder layer makes of `memory`, whatever looks at them."""
    seen = layer.memory_norm(memory) if layer.config.memory_norm else memory
    key, value = keys_and_values(layer.cross_attention, seen)
    return {"key": key, "value": value}
