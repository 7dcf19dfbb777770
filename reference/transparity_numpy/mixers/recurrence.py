"""Functions that all recurrences share: causal convolutions of queries, keys and values, and a state that decays."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear, silu, softplus
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Channels, EarlierChannels, Hidden, Parameters, PerHead, QueryHeads, Rates, State
from transparity_numpy.state.cache import held_tokens, update_inputs
from transparity_numpy.state.context import Context


def causal_convolution(
    weight: Inexact[Array, "features width"],
    x: Channels,
    before: EarlierChannels,
    bias: Inexact[Array, " features"] | None = None,
) -> Channels:
    """yₜ = Σᵢ weight[width − 1 − i] · xₜ₋ᵢ + bias, for i = 0 … width − 1; `before` has the inputs before `x`."""
    width, x = weight.shape[1], np.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = np.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def convolve(config: TransformerConfig, parameters: Parameters, name: str, x: Hidden, context: Context) -> Channels:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x, kernel = linear(parameters[name], x), parameters[f"{name}_convolution"]
    before = np.zeros((len(x), config.convolution_width - 1, x.shape[-1]), x.dtype)
    if context.cache is not None:
        before = update_inputs(context.cache, name, x, context.valid_lengths)
    return silu(causal_convolution(kernel["weight"], x, before, kernel.get("bias")))


def unpadded(config: TransformerConfig, x: Channels, context: Context) -> Channels:
    """Return `x` with zeros in place of padding, if padding is masked."""
    if config.decoder_mask == "causal":
        return x
    positions = np.broadcast_to(context.positions, x.shape[:2])
    return x * np.take_along_axis(context.is_token, positions, axis=1)[..., None].astype(x.real.dtype)


def time_step(config: TransformerConfig, parameters: Parameters, x: Hidden) -> Rates:
    """clip(softplus(x Wᵀ + dt_bias)), the time step of the state's decay (Gu and Dao 2024, §3.6)."""
    step = softplus(upcast(linear(parameters["decay"], x)) + upcast(parameters["dt_bias"]))
    least, most = config.time_step_min, config.time_step_max
    within = (step.real >= least) & (most is None or step.real <= most)
    return np.where(within, step, np.clip(step.real, least, most))


def log_decay(parameters: Parameters, step: Rates) -> Rates:
    """−exp(A_log) · time step, the logarithm of the share of the state that remains (Gu and Dao 2024)."""
    return -np.exp(upcast(parameters["A_log"])) * step


def by_head(x: Rates, context: Context) -> PerHead:
    """Move the axis of heads before the positions, cast to at least float32, and zero tokens beyond `valid_lengths`."""
    return upcast((x if context.cache is None else held_tokens(x, context.valid_lengths)).swapaxes(1, 2))


def first_state(config: TransformerConfig, query: QueryHeads, context: Context) -> State:
    """Return the initial state: the state in the cache, or zeros."""
    size = (len(query), config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    return np.zeros(size, query.real.dtype) if context.cache is None else context.cache["state"]
