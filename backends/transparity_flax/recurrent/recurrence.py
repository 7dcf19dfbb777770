"""Recurrence: a state, which each token decays, writes to and reads, in place of self-attention."""

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

CHUNK = 64
"""Positions that the state is not computed between."""


def causal_convolution(
    weight: Float[Array, "features width"],
    x: Float[Array, "batch length features"],
    before: Float[Array, "batch earlier features"],
    bias: Float[Array, " features"] | None = None,
) -> Float[Array, "batch length features"]:
    """Sum of each feature's last `width` numbers, its own the last, each times a weight of the feature, and `bias`;
    those in front of `x` are `before`."""
    width, x = weight.shape[1], jnp.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = jnp.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def unit_length(x: Float[Array, "*batch features"]) -> Float[Array, "*batch features"]:
    """x / √(Σ x² + eps) over the features."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).sum(axis=-1, keepdims=True) + UNIT_EPS)).astype(x.dtype)


def time_step(module: Recurrence, x: Float[Array, "batch length embed_dim"]) -> Float[Array, "batch length heads"]:
    """softplus(x Wᵀ + b), within bounds: the time that the state decays for (Gu and Dao 2024, §3.6)."""
    step = jax.nn.softplus(upcast(module.decay(x)) + upcast(module.dt_bias[...]))
    return jnp.clip(step, module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Float[Array, "batch length heads"]) -> Float[Array, "batch length heads"]:
    """Logarithm of the share of the state that stays: −exp(A_log) · the time step (Gu and Dao 2024)."""
    return -jnp.exp(upcast(module.A_log[...])) * step


def gated_delta_rule(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    value: Float[Array, "batch heads length value_dim"],
    log_decay: Float[Array, "batch heads length"],
    beta: Float[Array, "batch heads length"],
    state: Float[Array, "batch heads head_dim value_dim"],
) -> tuple[Float[Array, "batch heads length value_dim"], Float[Array, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state: S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); then
    q S / √head_dim (Yang et al. 2025, eq. 10). Chunk by chunk (§3.3 there): the changes that a chunk's tokens make
    depend on those of earlier ones alone, so they are the solution of a triangular system."""

    def one(state: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b = given
        (between, begun), strength = _chunk_decays(g), b[..., None]
        change = jax.lax.linalg.triangular_solve(
            jnp.tril(strength * k @ k.mT * between, -1),
            strength * (v - begun * (k @ state)),
            left_side=True,
            lower=True,
            unit_diagonal=True,
        )
        read = begun * (q @ state) + q @ k.mT * between @ change
        return begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ change, read

    query = query * query.shape[-1] ** -0.5
    state, reads = jax.lax.scan(one, state, tuple(_in_chunks(x) for x in (query, key, value, log_decay, beta)))
    return _in_a_row(reads, query.shape[2]), state


def state_space_rule(
    query: Float[Array, "batch heads length head_dim"],
    key: Float[Array, "batch heads length head_dim"],
    value: Float[Array, "batch heads length value_dim"],
    log_decay: Float[Array, "batch heads length"],
    step: Float[Array, "batch heads length"],
    state: Float[Array, "batch heads head_dim value_dim"],
) -> tuple[Float[Array, "batch heads length value_dim"], Float[Array, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state, which nothing corrects: S ← e^log_decay · S + k ⊗ step
    · v; then q S (Dao and Gu 2024, eq. 2; q, k and v are C, B and x there). Chunk by chunk (§6 there)."""

    def one(state: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g = given
        between, begun = _chunk_decays(g)
        read = begun * (q @ state) + q @ k.mT * between @ v
        return begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ v, read

    value = step[..., None] * value
    state, reads = jax.lax.scan(one, state, tuple(_in_chunks(x) for x in (query, key, value, log_decay)))
    return _in_a_row(reads, query.shape[2]), state


def gated_norm(
    config: TransformerConfig,
    norm: _GatedNorm,
    x: Float[Array, "batch length features"],
    gate: Float[Array, "batch length features"],
) -> Float[Array, "batch length features"]:
    """RMS norm of each head, whose gain is its weight, times silu of the gate; with a state-space model, of x · silu of
    the gate, over the heads that share a key, and each feature has a weight."""
    weight = norm.scale[...]
    if config.mixer == "gated-delta":
        heads = x.reshape(*x.shape[:2], config.recurrent_heads, -1)
        return rms_norm(heads, weight, config.norm_eps).reshape(x.shape) * jax.nn.silu(gate)
    groups = (upcast(x) * jax.nn.silu(upcast(gate))).reshape(*x.shape[:2], config.recurrent_key_heads, -1)
    return (rms_norm(groups, jnp.ones(groups.shape[-1]), config.norm_eps).reshape(x.shape) * weight).astype(x.dtype)


def unpadded(x: Float[Array, "*batch features"], context: LayerContext) -> Float[Array, "*batch features"]:
    """`x` with zeros for padding, where it is masked."""
    return x if context.is_token is None else x * context.is_token[..., None].astype(x.dtype)


def convolve(
    module: Recurrence,
    name: str,
    x: Float[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Float[Array, "batch length features"]:
    """The `query`, `key` or `value` of all heads: projected, convolved over time, and through silu."""
    x, kernel = getattr(module, name)(x), getattr(module, f"{name}_convolution")
    before = jnp.zeros((len(x), module.config.convolution_width - 1, x.shape[-1]), x.dtype)
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    bias = kernel.bias[...] if module.config.convolution_bias else None
    y = jax.nn.silu(causal_convolution(kernel.kernel[...].T, x, before, bias))
    return tap(f"{name}_convolved", unpadded(y, context) if module.config.mixer == "state-space" else y)


def rates(
    module: Recurrence,
    x: Float[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> tuple[Float[Array, "batch heads length"], Float[Array, "batch heads length"]]:
    """Logarithm of the share of the state that each token leaves, and how strongly it writes: by beta, a sigmoid, or by
    the time step itself (`state-space`)."""
    step = time_step(module, x)
    if module.config.mixer == "gated-delta":
        strength = tap("beta", jax.nn.sigmoid(module.beta(x)))
    else:
        strength = step = tap("time_step", step.astype(x.dtype))
    decay = tap("log_decay", log_decay(module, step))
    if cache is not None:
        decay, strength = held_tokens(decay, context.valid_lengths), held_tokens(strength, context.valid_lengths)
    return upcast(decay.swapaxes(1, 2)), upcast(strength.swapaxes(1, 2))


def _chunk_decays(
    log_decay: Float[Array, "batch heads length"],
) -> tuple[Float[Array, "batch heads length length"], Float[Array, "batch heads length 1"]]:
    """The shares of the state that stay from each position of a chunk to each later one, and from its begin."""
    # Sums from each position on: differences of sums from the begin on would lose digits.
    onward = jnp.tril(jnp.broadcast_to(log_decay[..., None], (*log_decay.shape, log_decay.shape[-1])), -1).cumsum(-2)
    return jnp.tril(jnp.exp(onward)), jnp.exp(log_decay.cumsum(-1))[..., None]


def _in_chunks(x: Float[Array, "batch heads length *features"]) -> Float[Array, "chunks batch heads chunk *features"]:
    """Pieces of `CHUNK` positions, the last filled up with zeros, which decay no state and write nothing."""
    size = min(CHUNK, x.shape[2])
    filled = jnp.pad(x, [(0, -x.shape[2] % size) if axis == 2 else (0, 0) for axis in range(x.ndim)])
    return jnp.moveaxis(filled.reshape(*x.shape[:2], -1, size, *x.shape[3:]), 2, 0)


def _in_a_row(
    x: Float[Array, "chunks batch heads chunk features"], length: int
) -> Float[Array, "batch heads length features"]:
    """The inverse of `_in_chunks`."""
    return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1, x.shape[-1])[:, :, :length]


class _GatedNorm(nnx.Module):
    """The gain of `gated_norm`."""

    def __init__(self, features: int) -> None:
        self.scale = nnx.Param(jnp.ones(features))


class _Convolution(nnx.Module):
    """The weights of `causal_convolution`, and its bias, if any."""

    def __init__(self, features: int, width: int, *, bias: bool) -> None:
        self.kernel = nnx.Param(jnp.zeros((width, features)))
        self.bias = nnx.Param(jnp.zeros(features)) if bias else None


class Recurrence(nnx.Module):
    """Gated delta network (Yang et al. 2025, §3.4) or Mamba-2 (Dao and Gu 2024, §7.1); with a `cache`, it goes on from
    the state there.

    Padding is zeros: it writes nothing of its own, but decays the state, and convolutions pass over it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        bias, is_delta = config.recurrent_bias, config.mixer == "gated-delta"
        for name, features in config.convolution_dims.items():
            setattr(self, name, nnx.Linear(config.embed_dim, features, use_bias=bias, rngs=rngs))
            kernel = _Convolution(features, config.convolution_width, bias=config.convolution_bias)
            setattr(self, f"{name}_convolution", kernel)
        self.decay = nnx.Linear(config.embed_dim, config.recurrent_heads, use_bias=bias, rngs=rngs)
        self.dt_bias = nnx.Param(jnp.zeros(config.recurrent_heads))
        self.A_log = nnx.Param(jnp.zeros(config.recurrent_heads))
        if is_delta:
            self.beta = nnx.Linear(config.embed_dim, config.recurrent_heads, use_bias=bias, rngs=rngs)
        else:
            self.D = nnx.Param(jnp.ones(config.recurrent_heads))
        self.gate = nnx.Linear(config.embed_dim, config.recurrent_dim, use_bias=bias, rngs=rngs)
        self.gated_norm = _GatedNorm(config.recurrent_value_dim if is_delta else config.recurrent_dim)
        self.output = nnx.Linear(config.recurrent_dim, config.embed_dim, use_bias=bias, rngs=rngs)

    def __call__(
        self,
        x: Float[Array, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Array, "batch queries embed_dim"]:
        x = unpadded(x, context)
        query, key, value = (convolve(self, name, x, context, tap, cache) for name in ("query", "key", "value"))
        config, is_delta = self.config, self.config.mixer == "gated-delta"
        heads, shared = config.recurrent_heads, config.recurrent_key_heads
        query, key, value = split_heads(query, shared), split_heads(key, shared), upcast(split_heads(value, heads))
        if is_delta:
            query = tap("query_normalized", unit_length(query))
            key = tap("key_normalized", unit_length(key))
        decay, strength = rates(self, x, context, tap, cache)
        query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
        size = (len(x), heads, config.recurrent_key_dim, config.recurrent_value_dim)
        state = jnp.zeros(size, query.dtype) if cache is None else cache["state"]
        rule = gated_delta_rule if is_delta else state_space_rule
        read, state = rule(query, key, value, decay, strength, state)
        if not is_delta:
            read = read + upcast(self.D[...])[:, None, None] * value
        if cache is not None:
            update_state(cache, state)
        read = tap("context", merge_heads(read).astype(x.dtype))
        y = tap("gated_context", gated_norm(config, self.gated_norm, read, self.gate(x)))
        return tap("output", self.output(y))
