"""Functions for recurrences, which replace self-attention: each token decays a state, adds to it and reads it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Features, Hidden
from transparity_flax.state.cache import Cache, held_tokens
from transparity_flax.state.context import LayerContext


def unpadded(x: Features, context: LayerContext) -> Features:
    """Return `x` with zeros in place of padding, if padding is masked."""
    return x if context.is_token is None else x * context.is_token[..., None].astype(x.dtype)


def time_step(module: Recurrence, x: Hidden) -> Float[Array, "batch length heads"]:
    """clip(softplus(x Wᵀ + dt_bias)), the time step of the state's decay (Gu and Dao 2024, §3.6)."""
    step = jax.nn.softplus(upcast(module.decay(x)) + upcast(module.dt_bias[...]))
    return jnp.clip(step, module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Float[Array, "batch length heads"]) -> Float[Array, "batch length heads"]:
    """−exp(A_log) · time step, the logarithm of the share of the state that remains (Gu and Dao 2024)."""
    return -jnp.exp(upcast(module.A_log[...])) * step


def by_head(
    x: Float[Array, "batch length heads"], context: LayerContext, cache: Cache | None
) -> Float[Array, "batch heads length"]:
    """Return `x` with heads before positions, in at least float32; numbers of filler tokens in a cache are 0."""
    return upcast((x if cache is None else held_tokens(x, context.valid_lengths)).swapaxes(1, 2))


def first_state(
    config: TransformerConfig, query: Float[Array, "batch heads length head_dim"], cache: Cache | None
) -> Float[Array, "batch heads head_dim value_dim"]:
    """Return the initial state: the state in the `cache`, or zeros."""
    size = (len(query), config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    return jnp.zeros(size, query.dtype) if cache is None else cache["state"]


class Recurrence(nnx.Module):
    """The linear maps, the convolutions and the decay of a recurrence."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, bias, heads = config, config.recurrent_bias, config.recurrent_heads
        for name, features in config.convolution_dims.items():
            setattr(self, name, nnx.Linear(config.embed_dim, features, use_bias=bias, rngs=rngs))
            kernel = _Convolution(features, config.convolution_width, bias=config.convolution_bias, rngs=rngs)
            setattr(self, f"{name}_convolution", kernel)
        self.decay = nnx.Linear(config.embed_dim, heads, use_bias=bias, rngs=rngs)
        self.dt_bias, self.A_log = nnx.Param(jnp.zeros(heads)), nnx.Param(jnp.zeros(heads))
        self.gate = nnx.Linear(config.embed_dim, config.recurrent_dim, use_bias=bias, rngs=rngs)
        self.output = nnx.Linear(config.recurrent_dim, config.embed_dim, use_bias=bias, rngs=rngs)


class _Convolution(nnx.Module):
    """The weights of `causal_convolution`, and its bias if there is one."""

    def __init__(self, features: int, width: int, *, bias: bool, rngs: nnx.Rngs) -> None:
        bound = width**-0.5
        self.kernel = nnx.Param(jax.random.uniform(rngs.params(), (width, features), minval=-bound, maxval=bound))
        self.bias = nnx.Param(jnp.zeros(features)) if bias else None
