"""Layers: a mixer, cross-attention if there is an encoder, and a feed-forward, each with its residual and norms."""

from __future__ import annotations

from collections.abc import Callable

from transparity.config import TransformerConfig
from transparity.taps import scoped
from transparity_numpy.experts import mixture_of_experts
from transparity_numpy.feed_forward import feed_forward
from transparity_numpy.mixers import MIXERS
from transparity_numpy.mixers.attention import cross_attention
from transparity_numpy.norms.norm import norm
from transparity_numpy.shapes import Hidden, Parameters
from transparity_numpy.state.context import Context

NORMS_AT: dict[str, dict[str, str]] = {
    "pre": {"before": "norm"},
    "post": {"after": "norm"},
    "sandwich": {"before": "norm", "between": "post_norm"},
    "post-branch": {"between": "norm"},
}
"""The norms before a sublayer f, `between` f(x) and the residual sum, and after the sum, by `config.norm_position`. The
position is `post` in Vaswani et al. 2017, §3.1, and `pre` in Xiong et al. 2020."""


def normalize(config: TransformerConfig, parameters: Parameters, name: str, x: Hidden, context: Context) -> Hidden:
    """Apply the norm `name` of a layer or stack, and pass the result to the tap function."""
    tap = context.tap
    return tap(name, norm(config, parameters[name], x, scoped(tap, name), training=context.training))


def add_residual(config: TransformerConfig, x: Hidden, y: Hidden) -> Hidden:
    return x + y if config.residual_multiplier == 1 else x + y * x.dtype.type(config.residual_multiplier)


def normed(
    config: TransformerConfig, parameters: Parameters, name: str, place: str, x: Hidden, context: Context
) -> Hidden:
    """Apply the norm of the sublayer `name` at `place`, such as `before` (`NORMS_AT`); without a norm, return `x`."""
    norms = NORMS_AT[config.norm_position] if config.attention_norm or name != "self_attention" else {}
    return normalize(config, parameters, f"{name}_{norms[place]}", x, context) if place in norms else x


def mix(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Apply the layer's mixer: self-attention, or the mixer that `config.mixer_name` names."""
    scope = config.mixer_scope
    return MIXERS[config.mixer_name](config, parameters[scope], x, context.under(scope))


def attend_to_memory(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Apply cross-attention to the encoder's output, which is normalized first if `memory_norm` is set."""
    if config.memory_norm and context.memory is not None:
        context = context._replace(memory=normalize(config, parameters, "memory_norm", context.memory, context))
    return cross_attention(config, parameters["cross_attention"], x, context.under("cross_attention"))


def feed(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    function = mixture_of_experts if config.num_experts else feed_forward
    return function(config, parameters["feed_forward"], x, scoped(context.tap, "feed_forward"))


def residual(
    config: TransformerConfig,
    parameters: Parameters,
    name: str,
    x: Hidden,
    context: Context,
    sublayer: Callable[..., Hidden],
) -> Hidden:
    """after(x + between(sublayer(before(x)))), with the norms of `NORMS_AT`; an absent norm is the identity."""
    y = sublayer(config, parameters, normed(config, parameters, name, "before", x, context), context)
    y = normed(config, parameters, name, "between", y, context)
    return normed(config, parameters, name, "after", add_residual(config, x, y), context)


def layer(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """A mixer, cross-attention if there is an encoder, and a feed-forward, each with its own residual connection.

    With the norms of Vaswani et al. 2017: x = norm(x + self_attention(x)), x = norm(x + cross_attention(x)), and
    x = norm(x + feed_forward(x)). With a cache, `x` has only the new tokens, which follow the cached tokens.
    """
    x = residual(config, parameters, "self_attention", x, context, mix)
    if context.memory_mask is not None:
        x = residual(config, parameters, "cross_attention", x, context, attend_to_memory)
    if config.feed_forward_dim:
        x = residual(config, parameters, "feed_forward", x, context, feed)
    return context.tap("output", x)
