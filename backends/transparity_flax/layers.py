"""A layer: self-attention, cross-attention in a decoder with a memory, and the feed-forward."""

from __future__ import annotations

from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.attention import CrossAttention, SelfAttention, project_key_value
from transparity_flax.feed_forward import FeedForward
from transparity_flax.mixture.experts import MixtureOfExperts
from transparity_flax.normalization import Norm
from transparity_flax.recurrent.recurrence import Recurrence
from transparity_flax.state.cache import Cache
from transparity_flax.state.context import LayerContext


def normalize(
    module: nnx.Module, name: str, x: Float[Array, "batch length embed_dim"], tap: Tap = identity
) -> Float[Array, "batch length embed_dim"]:
    """Apply the norm `name` of a layer or stack, and tap it under its name."""
    return tap(name, getattr(module, name)(x, scoped(tap, name)))


def add_residual(
    config: TransformerConfig, x: Float[Array, "batch length embed_dim"], y: Float[Array, "batch length embed_dim"]
) -> Float[Array, "batch length embed_dim"]:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * config.residual_multiplier


def sublayer_input(
    layer: Layer, name: str, x: Float[Array, "batch length embed_dim"], tap: Tap = identity
) -> Float[Array, "batch length embed_dim"]:
    """norm(x) with the norm first (`pre`, Xiong et al. 2020; `sandwich`, Gemma 2), else x; x before attention without
    a norm (ModernBERT's first layer)."""
    config = layer.config
    if config.norm_position in ("post", "post-branch") or (name == "self_attention" and not config.attention_norm):
        return x
    return normalize(layer, f"{name}_norm", x, tap)


def sublayer_output(
    layer: Layer,
    name: str,
    x: Float[Array, "batch length embed_dim"],
    y: Float[Array, "batch length embed_dim"],
    tap: Tap = identity,
) -> Float[Array, "batch length embed_dim"]:
    """Add the residual x to a sublayer's result y: x + y (`pre`), norm(x + y) (`post`, Vaswani et al. 2017, §3.1), or
    x + norm(y) (`sandwich`; `post-branch`, OLMo 2)."""
    if layer.config.norm_position == "pre":
        return add_residual(layer.config, x, y)
    if layer.config.norm_position in ("sandwich", "post-branch"):
        behind = f"{name}_post_norm" if layer.config.norm_position == "sandwich" else f"{name}_norm"
        return add_residual(layer.config, x, normalize(layer, behind, y, tap))
    return normalize(layer, f"{name}_norm", add_residual(layer.config, x, y), tap)


class Layer(nnx.Module):
    """Self-attention, cross-attention if there is a memory, then the feed-forward, if any; or attention and
    feed-forward as parallel branches (GPT-J, GPT-NeoX).

    With a `cache`, `x` are the tokens at `context.positions` that follow those in it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs, has_memory: bool = False) -> None:
        self.config = config
        if config.mixer == "attention":
            self.self_attention = SelfAttention(config, rngs=rngs)
        else:
            self.recurrence = Recurrence(config, rngs=rngs)
        if config.attention_norm:
            self.self_attention_norm = Norm(config, rngs=rngs)
        if has_memory:
            self.cross_attention = CrossAttention(config, rngs=rngs)
            self.cross_attention_norm = Norm(config, rngs=rngs)
        if has_memory and config.memory_norm:
            self.memory_norm = Norm(config, rngs=rngs)
        if config.feed_forward_dim:
            self.feed_forward = (MixtureOfExperts if config.num_experts else FeedForward)(config, rngs=rngs)
        if config.feed_forward_dim and config.branches != "parallel-one-norm":
            self.feed_forward_norm = Norm(config, rngs=rngs)
        if config.norm_position == "sandwich":
            self.self_attention_post_norm = Norm(config, rngs=rngs)
        if config.norm_position == "sandwich" and config.feed_forward_dim:
            self.feed_forward_post_norm = Norm(config, rngs=rngs)
        if config.norm_position == "sandwich" and has_memory:
            self.cross_attention_post_norm = Norm(config, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Array, "batch queries embed_dim"]:
        caches = cache or {}
        normed = sublayer_input(self, "self_attention", x, tap)
        mix, scope = getattr(self, self.config.mixer_scope), self.config.mixer_scope
        y = mix(normed, context, scoped(tap, scope), caches.get(scope))
        if self.config.branches != "sequential":
            z = sublayer_input(self, "feed_forward", x, tap) if self.config.branches == "parallel" else normed
            z = self.feed_forward(z, scoped(tap, "feed_forward"))
            return tap("output", add_residual(self.config, add_residual(self.config, x, y), z))
        x = sublayer_output(self, "self_attention", x, y, tap)
        if context.memory_mask is not None:
            y = sublayer_input(self, "cross_attention", x, tap)
            if self.config.memory_norm and context.memory is not None:
                context = context._replace(memory=normalize(self, "memory_norm", context.memory, tap))
            y = self.cross_attention(y, context, scoped(tap, "cross_attention"), caches.get("cross_attention"))
            x = sublayer_output(self, "cross_attention", x, y, tap)
        if not self.config.feed_forward_dim:
            return tap("output", x)
        y = sublayer_input(self, "feed_forward", x, tap)
        y = self.feed_forward(y, scoped(tap, "feed_forward"))
        x = sublayer_output(self, "feed_forward", x, y, tap)
        return tap("output", x)


def cross_attention_cache(layer: Layer, memory: Float[Array, "batch keys embed_dim"]) -> Cache:
    """Keys and values of a layer's cross-attention, for every later step."""
    if layer.config.memory_norm:
        memory = normalize(layer, "memory_norm", memory)
    key, value = project_key_value(layer.cross_attention, memory)
    return {"key": key, "value": value}
