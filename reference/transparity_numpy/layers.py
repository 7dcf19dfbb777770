"""Layers: a mixer, cross-attention if there is an encoder, and a feed-forward, each with its residual and norms."""

from __future__ import annotations

from collections.abc import Callable

from transparity.config import TransformerConfig
from transparity.taps import scoped
from transparity_numpy.experts import mixture_of_experts
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.mixers.attention import cross_attention, self_attention
from transparity_numpy.mixers.gated_delta import gated_delta
from transparity_numpy.mixers.latent import latent_attention
from transparity_numpy.mixers.state_space import state_space
from transparity_numpy.norms import norm
from transparity_numpy.shapes import Hidden, Parameters
from transparity_numpy.state.context import LayerContext

MIXERS: dict[str, Callable[..., Hidden]] = {
    "attention": self_attention,
    "latent": latent_attention,
    "gated-delta": gated_delta,
    "state-space": state_space,
}
"""The function for each `config.mixer_name`."""


def normalize(config: TransformerConfig, parameters: Parameters, name: str, x: Hidden, context: LayerContext) -> Hidden:
    """Apply the norm `name` of a layer or stack, and tap the result under this name."""
    tap = context.tap
    return tap(name, norm(config, parameters[name], x, scoped(tap, name), training=context.training))


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    """x + y, or x + multiplier · y (Granite)."""
    return x + y if config.residual_multiplier == 1 else x + y * x.dtype.type(config.residual_multiplier)


def residual(
    config: TransformerConfig,
    parameters: Parameters,
    name: str,
    x: Hidden,
    sublayer: Callable[[Hidden], Hidden],
    context: LayerContext,
) -> Hidden:
    """x + sublayer(x), with the norms of the sublayer `name` at the places that `config.norm_position` names."""

    def normed(x: Hidden, end: str = "norm") -> Hidden:
        if name == "self_attention" and not config.attention_norm:  # ModernBERT's first layer
            return x
        return normalize(config, parameters, f"{name}_{end}", x, context)

    position = config.norm_position
    if position == "pre":  # Xiong et al. 2020
        return add_residual(config, x, sublayer(normed(x)))
    if position == "post":  # Vaswani et al. 2017, §3.1
        return normed(add_residual(config, x, sublayer(x)))
    if position == "sandwich":  # Gemma 2
        return add_residual(config, x, normed(sublayer(normed(x)), "post_norm"))
    assert position == "post-branch"  # OLMo 2
    return add_residual(config, x, normed(sublayer(x)))


def mix(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """Apply the layer's mixer: self-attention, or another that `config.mixer_name` names."""
    scope = config.mixer_scope
    return MIXERS[config.mixer_name](config, parameters[scope], x, context.under(scope))


def attend_to_memory(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """Apply cross-attention to the encoder's output, which is normalized first if `memory_norm` is set."""
    if config.memory_norm and context.memory is not None:
        context = context._replace(memory=normalize(config, parameters, "memory_norm", context.memory, context))
    return cross_attention(config, parameters["cross_attention"], x, context.under("cross_attention"))


def feed(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """Apply the feed-forward, or the mixture of experts."""
    function = mixture_of_experts if config.num_experts else feed_forward
    return function(config, parameters["feed_forward"], x, scoped(context.tap, "feed_forward"))


def layer(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """A mixer, cross-attention if there is an encoder, and a feed-forward, each with its own residual connection.

    With a cache, `x` has the tokens at `context.positions`, which follow the cached tokens.
    """
    given = config, parameters
    x = residual(*given, "self_attention", x, lambda x: mix(*given, x, context), context)
    if context.memory_mask is not None:
        x = residual(*given, "cross_attention", x, lambda x: attend_to_memory(*given, x, context), context)
    if config.feed_forward_dim:
        x = residual(*given, "feed_forward", x, lambda x: feed(*given, x, context), context)
    return context.tap("output", x)


def parallel_layer(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """x + attention(norm(x)) + feed_forward(norm(x)), with a norm per branch (GPT-NeoX) or one for both (GPT-J)."""
    shared = normalize(config, parameters, "self_attention_norm", x, context)
    y = mix(config, parameters, shared, context)
    own = config.branches == "parallel"
    z = normalize(config, parameters, "feed_forward_norm", x, context) if own else shared
    z = feed(config, parameters, z, context)
    return context.tap("output", add_residual(config, add_residual(config, x, y), z))


LAYERS = {"sequential": layer, "parallel": parallel_layer, "parallel-one-norm": parallel_layer}
"""The function for each `config.branches`."""
