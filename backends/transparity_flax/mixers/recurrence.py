"""Functions that all recurrences share: causal convolutions of queries, keys and values, and a state that decays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Channels, EarlierChannels, Hidden, PerHead, QueryHeads, Rates, State
from transparity_flax.state.cache import held_tokens, update_inputs
from transparity_flax.state.context import Context


def causal_convolution(
    weight: Float[Array, "features width"],
    x: Channels,
    before: EarlierChannels,
    bias: Float[Array, " features"] | None = None,
) -> Channels:
    """yₜ = Σᵢ weight[width − 1 − i] · xₜ₋ᵢ + bias, for i = 0 … width − 1; `before` has the inputs before `x`."""
    width, x = weight.shape[1], jnp.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = jnp.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def convolve(module: Any, name: str, x: Hidden, context: Context) -> Channels:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x, kernel = getattr(module, name)(x), getattr(module, f"{name}_convolution")
    before = jnp.zeros((len(x), module.config.convolution_width - 1, x.shape[-1]), x.dtype)
    if context.cache is not None:
        before = update_inputs(context.cache, name, x, context.valid_lengths)
    bias = kernel.bias[...] if module.config.convolution_bias else None
    return jax.nn.silu(causal_convolution(kernel.kernel[...].T, x, before, bias))


CHUNK = 64
"""Tokens per chunk; the state is computed once per chunk."""


def in_chunks(x: Float[Array, "batch heads length *features"]) -> Float[Array, "chunks batch heads chunk *features"]:
    """Split positions into chunks of `CHUNK`; zeros, which do not affect the state, pad the last chunk."""
    size = min(CHUNK, x.shape[2])
    filled = jnp.pad(x, [(0, -x.shape[2] % size) if axis == 2 else (0, 0) for axis in range(x.ndim)])
    return jnp.moveaxis(filled.reshape(*x.shape[:2], -1, size, *x.shape[3:]), 2, 0)


def in_a_row(
    x: Float[Array, "chunks batch heads chunk features"], length: int
) -> Float[Array, "batch heads length features"]:
    """Join chunks into one sequence: the inverse of `in_chunks`."""
    return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1, x.shape[-1])[:, :, :length]


def chunk_decays(
    log_decay: PerHead,
) -> tuple[Float[Array, "batch heads length length"], Float[Array, "batch heads length 1"]]:
    """Return the share of each position's change that is left at each later position, and the share of the initial
    state."""
    # Each sum starts at its own position, because differences of sums from the start of the chunk would lose digits.
    onward = jnp.tril(jnp.broadcast_to(log_decay[..., None], (*log_decay.shape, log_decay.shape[-1])), -1).cumsum(-2)
    return jnp.tril(jnp.exp(onward)), jnp.exp(log_decay.cumsum(-1))[..., None]


def unpadded(config: TransformerConfig, x: Channels, context: Context) -> Channels:
    """Return `x` with zeros in place of padding, if padding is masked."""
    if config.decoder_mask == "causal":
        return x
    positions = jnp.broadcast_to(context.positions, x.shape[:2])
    return x * jnp.take_along_axis(context.is_token, positions, axis=1)[..., None].astype(x.dtype)


def time_step(module: Recurrence, x: Hidden) -> Rates:
    """clip(softplus(x Wᵀ + dt_bias)), the time step of the state's decay (Gu and Dao 2024, §3.6)."""
    step = jax.nn.softplus(upcast(module.decay(x)) + upcast(module.dt_bias[...]))
    return jnp.clip(step, module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Rates) -> Rates:
    """−exp(A_log) · time step, the logarithm of the share of the state that remains (Gu and Dao 2024)."""
    return -jnp.exp(upcast(module.A_log[...])) * step


def by_head(x: Rates, context: Context) -> PerHead:
    """Move the axis of heads before the positions, cast to at least float32, and zero tokens beyond `valid_lengths`."""
    return upcast((x if context.cache is None else held_tokens(x, context.valid_lengths)).swapaxes(1, 2))


def first_state(config: TransformerConfig, query: QueryHeads, context: Context) -> State:
    """Return the initial state: the state in the cache, or zeros."""
    size = (len(query), config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    return jnp.zeros(size, query.dtype) if context.cache is None else context.cache["state"]


class Recurrence(nnx.Module):
    """The linear maps, the convolutions and the decay of a recurrence."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, bias, heads = config, config.recurrent_bias, config.recurrent_heads
        for name, features in config.convolution_dims.items():
            setattr(self, name, nnx.Linear(config.embed_dim, features, use_bias=bias, rngs=rngs))
            kernel = _Convolution(features, config.convolution_width, bias=config.convolution_bias, rngs=rngs)
            setattr(self, f"{name}_convolution", kernel)
        self.decay = nnx.Linear(config.embed_dim, heads, use_bias=bias, rngs=rngs)
        self.dt_bias = nnx.Param(jnp.zeros(heads))
        self.A_log = nnx.Param(jnp.log(jnp.arange(1.0, heads + 1)))  # the rates 1, 2 … of Mamba-2
        self.gate = nnx.Linear(config.embed_dim, config.recurrent_dim, use_bias=bias, rngs=rngs)
        self.output = nnx.Linear(config.recurrent_dim, config.embed_dim, use_bias=bias, rngs=rngs)


class _Convolution(nnx.Module):
    """The weights of `causal_convolution`, and its bias if there is one."""

    def __init__(self, features: int, width: int, *, bias: bool, rngs: nnx.Rngs) -> None:
        bound = width**-0.5
        self.kernel = nnx.Param(jax.random.uniform(rngs.params(), (width, features), minval=-bound, maxval=bound))
        self.bias = nnx.Param(jnp.zeros(features)) if bias else None
