"""State-space model (Mamba-2, Dao and Gu 2024): each token decays the state and adds to it."""

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


def state_space_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, step: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S + k ⊗ step · v; y = q S (Dao and Gu 2024, eq. 2, with C, B, x for q, k, v).

    Return y for each position, and the last state S. The positions of a chunk are computed at once (§6 of the paper).
    """

    def one(state: Array, given: tuple[Array, ...]) -> tuple[Array, Array]:
        q, k, v, g = given
        between, begun = chunk_decays(g)
        read = begun * (q @ state) + q @ k.mT * between @ v
        return begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ v, read

    value = step[..., None] * value
    state, reads = jax.lax.scan(one, state, tuple(in_chunks(x) for x in (query, key, value, log_decay)))
    return in_a_row(reads, query.shape[2]), state


class GatedGroupNorm(nnx.Module):
    """rms_norm(x · silu(gate)) · weight, with the norm over the heads that share a key."""

    def __init__(self, config: TransformerConfig) -> None:
        self.config, self.scale = config, nnx.Param(jnp.ones(config.recurrent_dim))

    def __call__(self, x: Channels, gate: Channels) -> Channels:
        groups = (upcast(x) * jax.nn.silu(upcast(gate))).reshape(*x.shape[:2], self.config.recurrent_key_heads, -1)
        normed = rms_norm(groups, jnp.ones(groups.shape[-1]), self.config.norm_eps)
        return (normed.reshape(x.shape) * self.scale[...]).astype(x.dtype)


class StateSpace(Recurrence):
    """Mamba-2 (Dao and Gu 2024, §7.1), whose state starts with the cached state or, without a cache, with zeros.

    Zeros replace masked padding before and after the convolutions, so padding only lets the state decay.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        self.D = nnx.Param(jnp.ones(config.recurrent_heads))
        self.gated_norm = GatedGroupNorm(config)

    def __call__(self, x: Hidden, context: Context) -> Hidden:
        config, tap, x = self.config, context.tap, unpadded(self.config, x, context)
        heads, shared = config.recurrent_heads, config.recurrent_key_heads
        query, key, value = (
            tap(f"{name}_convolved", unpadded(config, convolve(self, name, x, context), context))
            for name in ("query", "key", "value")
        )
        step = tap("time_step", time_step(self, x).astype(x.dtype))
        decay = tap("log_decay", log_decay(self, step))
        query, key = (upcast(repeat_heads(split_heads(each, shared), heads)) for each in (query, key))
        state, value = first_state(config, query, context), upcast(split_heads(value, heads))
        rates = by_head(decay, context), by_head(step, context)
        read, state = state_space_rule(query, key, value, *rates, state)
        read = read + upcast(self.D[...])[:, None, None] * value
        if context.cache is not None:
            context.cache["state"] = state
        read = tap("context", merge_heads(read).astype(x.dtype))
        return tap("output", self.output(tap("gated_context", self.gated_norm(read, self.gate(x)))))
