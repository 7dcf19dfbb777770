"""Recurrence: a state, which each token decays, corrects and reads, in place of self-attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.attention import merge_heads, repeat_heads, split_heads
from transparity_flax.normalization import rms_norm
from transparity_flax.state.cache import Cache, held_tokens, update_inputs, update_state
from transparity_flax.state.context import LayerContext

UNIT_EPS = 1e-6
"""Added to the square of the length of queries and keys, under the root (Qwen3-Next)."""


def causal_convolution(
    weight: Float[Array, "features width"],
    x: Float[Array, "batch length features"],
    before: Float[Array, "batch earlier features"],
) -> Float[Array, "batch length features"]:
    """Sum of each feature's last `width` numbers, its own the last, each times a weight of the feature; those in front
    of `x` are `before`."""
    width, x = weight.shape[1], jnp.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = jnp.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1)


def unit_length(x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    """x / √(Σ x² + eps) over the features."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).sum(axis=-1, keepdims=True) + UNIT_EPS)).astype(x.dtype)


def log_decay(module: Recurrence, x: Float[Array, "batch length embed_dim"]) -> Float[Array, "batch length heads"]:
    """Logarithm of the share of the state that stays: −exp(log_rate) · softplus(x Wᵀ + b) (Gu and Dao 2024)."""
    return -jnp.exp(upcast(module.log_rate[...])) * jax.nn.softplus(upcast(module.decay(x)))


def gated_delta_rule(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    value: Float[Array, "batch heads length value_dim"],
    log_decay: Float[Array, "batch heads length"],
    beta: Float[Array, "batch heads length"],
    state: Float[Array, "batch heads head_dim value_dim"],
) -> tuple[Float[Array, "batch heads length value_dim"], Float[Array, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state: S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); then
    q S / √head_dim (Yang et al. 2025, eq. 10). One position after the other, as a scan."""

    def one(state: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b = given
        state = state * jnp.exp(g)[..., None, None]
        change = b[..., None] * (v - jnp.einsum("bnk,bnkv->bnv", k, state))
        state = state + k[..., :, None] * change[..., None, :]
        return state, jnp.einsum("bnk,bnkv->bnv", q, state)

    query = query * query.shape[-1] ** -0.5
    by_position = tuple(jnp.moveaxis(x, 2, 0) for x in (query, key, value, log_decay, beta))
    state, read = jax.lax.scan(one, state, by_position)
    return jnp.moveaxis(read, 0, 2), state


def gated_norm(
    config: TransformerConfig,
    norm: _GatedNorm,
    x: Float[Array, "batch length features"],
    gate: Float[Array, "batch length features"],
) -> Float[Array, "batch length features"]:
    """RMS norm of each head, whose gain is its weight, times silu of the gate."""
    heads = x.reshape(*x.shape[:2], config.recurrent_heads, -1)
    return rms_norm(heads, norm.scale[...], config.norm_eps).reshape(x.shape) * jax.nn.silu(gate)


def convolve(
    module: Recurrence,
    name: str,
    x: Float[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Float[Array, "batch length features"]:
    """The `query`, `key` or `value` of all heads: projected, convolved over time, and through silu."""
    x = getattr(module, name)(x)
    before = jnp.zeros((len(x), module.config.convolution_width - 1, x.shape[-1]), x.dtype)
    if cache is not None:
        before = update_inputs(cache, name, x, context.counts)
    weight = getattr(module, f"{name}_convolution").kernel[...].T
    return tap(f"{name}_convolved", jax.nn.silu(causal_convolution(weight, x, before)))


class _GatedNorm(nnx.Module):
    """The gain of `gated_norm`."""

    def __init__(self, features: int) -> None:
        self.scale = nnx.Param(jnp.ones(features))


class _Convolution(nnx.Module):
    """The weights of `causal_convolution`."""

    def __init__(self, features: int, width: int) -> None:
        self.kernel = nnx.Param(jnp.zeros((width, features)))


class Recurrence(nnx.Module):
    """Gated delta network (Yang et al. 2025, §3.4); with a `cache`, it goes on from the state there.

    Padding is zeros: it writes nothing of its own, but decays the state, and convolutions pass over it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        for name, features in config.convolution_dims.items():
            setattr(self, name, nnx.Linear(config.embed_dim, features, use_bias=False, rngs=rngs))
            setattr(self, f"{name}_convolution", _Convolution(features, config.convolution_width))
        self.decay = nnx.Linear(config.embed_dim, config.recurrent_heads, rngs=rngs)
        self.log_rate = nnx.Param(jnp.zeros(config.recurrent_heads))
        self.beta = nnx.Linear(config.embed_dim, config.recurrent_heads, use_bias=False, rngs=rngs)
        self.gate = nnx.Linear(config.embed_dim, config.recurrent_dim, use_bias=False, rngs=rngs)
        self.gated_norm = _GatedNorm(config.recurrent_value_dim)
        self.output = nnx.Linear(config.recurrent_dim, config.embed_dim, use_bias=False, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Array, "batch queries embed_dim"]:
        if context.visible is not None:
            x = x * context.visible[..., None].astype(x.dtype)
        query, key, value = (convolve(self, name, x, context, tap, cache) for name in ("query", "key", "value"))
        heads, shared = self.config.recurrent_heads, self.config.recurrent_key_heads
        query = tap("query_normalized", unit_length(split_heads(query, shared)))
        key = tap("key_normalized", unit_length(split_heads(key, shared)))
        decay = tap("log_decay", log_decay(self, x).astype(x.dtype))
        beta = tap("beta", jax.nn.sigmoid(self.beta(x)))
        if cache is not None:
            decay, beta = held_tokens(decay, context.counts), held_tokens(beta, context.counts)
        query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
        decay, beta = (upcast(each.swapaxes(1, 2)) for each in (decay, beta))
        size = (len(x), heads, self.config.recurrent_key_dim, self.config.recurrent_value_dim)
        state = jnp.zeros(size, query.dtype) if cache is None else cache["state"]
        read, state = gated_delta_rule(query, key, upcast(split_heads(value, heads)), decay, beta, state)
        if cache is not None:
            update_state(cache, state)
        read = tap("context", merge_heads(read).astype(x.dtype))
        y = tap("gated_context", gated_norm(self.config, self.gated_norm, read, self.gate(x)))
        return tap("output", self.output(y))
