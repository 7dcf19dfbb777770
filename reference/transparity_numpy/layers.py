"""Layers: a mixer, cross-attention if there is an encoder, and a feed-forward, each with its residual and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_numpy.experts import mixture_of_experts
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.mixers.attention import cross_attention, self_attention
from transparity_numpy.mixers.gated_delta import gated_delta
from transparity_numpy.mixers.latent import latent_attention
from transparity_numpy.mixers.state_space import state_space
from transparity_numpy.norms.table import norm
from transparity_numpy.shapes import Hidden
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext

Sublayer = Callable[[Hidden], Hidden]


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * x.dtype.type(config.residual_multiplier)


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


MIXERS: dict[str, Callable[..., Hidden]] = {
    "attention": self_attention,
    "latent": latent_attention,
    "gated-delta": gated_delta,
    "state-space": state_space,
}
"""The function for each `config.mixer_name`."""


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


def parallel_layer(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Hidden,
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Hidden:
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm per branch (GPT-NeoX) or one for both (GPT-J)."""
    normed = partial(normalize, config, parameters, tap=tap, training=context.training)
    shared = normed("self_attention_norm", x)
    y = mix(config, parameters, shared, context, tap, cache)
    z = normed("feed_forward_norm", x) if config.branches == "parallel" else shared
    z = feed(config, parameters, z, tap)
    return tap("output", add_residual(config, add_residual(config, x, y), z))


LAYERS = {"sequential": layer, "parallel": parallel_layer, "parallel-one-norm": parallel_layer}
"""The function for each `config.branches`."""
