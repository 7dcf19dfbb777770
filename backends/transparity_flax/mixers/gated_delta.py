"""Gated delta network (Yang et al. 2025): each token corrects the value that the state has for its key."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_flax.mixers.recurrence import (
    Recurrence,
    by_head,
    chunk_decays,
    convolve,
    first_state,
    in_a_row,
    in_chunks,
    log_decay,
    time_step,
    unpadded,
)
from transparity_flax.norms.variants import rms_norm
from transparity_flax.shapes import Channels, Hidden, PerHead, QueryHeads, RecurrentValues, State
from transparity_flax.state.context import Context

UNIT_EPS = 1e-6
"""Small number that is added under the square root when queries and keys are scaled to length 1 (Qwen3-Next)."""


def unit_length(x: QueryHeads) -> QueryHeads:
    """x / √(Σ x² + eps), where the sum is over the features."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).sum(axis=-1, keepdims=True) + UNIT_EPS)).astype(x.dtype)


def gated_delta_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, beta: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); y = q S / √head_dim (Yang et al. 2025, eq. 10).

    Return y for each position, and the last state S. The positions of a chunk are computed at once (§3.3 of the paper).
    Each change of S depends on the earlier changes in the chunk, so the changes solve a triangular system of equations.
    """

    def one(state: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g, b = given
        (between, begun), strength = chunk_decays(g), b[..., None]
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
    state, reads = jax.lax.scan(one, state, tuple(in_chunks(x) for x in (query, key, value, log_decay, beta)))
    return in_a_row(reads, query.shape[2]), state


class GatedHeadNorm(nnx.Module):
    """rms_norm(x) · silu(gate), with the norm over each head."""

    def __init__(self, config: TransformerConfig) -> None:
        self.config, self.scale = config, nnx.Param(jnp.ones(config.recurrent_value_dim))

    def __call__(self, x: Channels, gate: Channels) -> Channels:
        heads = x.reshape(*x.shape[:2], self.config.recurrent_heads, -1)
        return rms_norm(heads, self.scale[...], self.config.norm_eps).reshape(x.shape) * jax.nn.silu(gate)


class GatedDelta(Recurrence):
    """Gated delta network (Yang et al. 2025, §3.4), whose state starts with the cached state or, without a cache, with
    zeros.

    Zeros replace masked padding in `x`. The convolutions still mix earlier tokens into the padding's keys and values.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        bias = config.recurrent_bias
        self.beta = nnx.Linear(config.embed_dim, config.recurrent_heads, use_bias=bias, rngs=rngs)
        self.gated_norm = GatedHeadNorm(config)

    def __call__(self, x: Hidden, context: Context) -> Hidden:
        config, tap, x = self.config, context.tap, unpadded(self.config, x, context)
        heads, shared = config.recurrent_heads, config.recurrent_key_heads
        query, key, value = (
            tap(f"{name}_convolved", convolve(self, name, x, context)) for name in ("query", "key", "value")
        )
        query = tap("query_normalized", unit_length(split_heads(query, shared)))
        key = tap("key_normalized", unit_length(split_heads(key, shared)))
        step = time_step(self, x)
        beta = tap("beta", jax.nn.sigmoid(self.beta(x)))
        decay = tap("log_decay", log_decay(self, step))
        query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
        state, value = first_state(config, query, context), upcast(split_heads(value, heads))
        rates = by_head(decay, context), by_head(beta, context)
        read, state = gated_delta_rule(query, key, value, *rates, state)
        if context.cache is not None:
            context.cache["state"] = state
        read = tap("context", merge_heads(read).astype(x.dtype))
        return tap("output", self.output(tap("gated_context", self.gated_norm(read, self.gate(x)))))
