"""State-space model (Mamba-2, Dao and Gu 2024): each token decays the state and adds to it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_pytorch.mixers.recurrence import (
    CHUNK,
    Recurrence,
    by_head,
    chunk_decays,
    convolve,
    first_state,
    log_decay,
    time_step,
    unpadded,
)
from transparity_pytorch.norms.variants import rms_norm
from transparity_pytorch.shapes import Channels, Hidden, PerHead, QueryHeads, RecurrentValues, State
from transparity_pytorch.state.context import Context


def state_space_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, step: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S + k ⊗ step · v; y = q S (Dao and Gu 2024, eq. 2, with C, B, x for q, k, v).

    Return y for each position, and the last state S. The positions of a chunk are computed at once (§6 of the paper).
    """
    reads, value = [], step[..., None] * value
    for q, k, v, g in zip(*(x.split(CHUNK, dim=2) for x in (query, key, value, log_decay)), strict=True):
        between, begun = chunk_decays(g)
        reads.append(begun * (q @ state) + q @ k.mT * between @ v)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ v
    return torch.cat(reads, dim=2), state


class GatedGroupNorm(nn.Module):
    """rms_norm(x · silu(gate)) · weight, with the norm over the heads that share a key."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.ones(config.recurrent_dim))

    def forward(self, x: Channels, gate: Channels) -> Channels:
        groups = (upcast(x) * F.silu(upcast(gate))).unflatten(-1, (self.config.recurrent_key_heads, -1))
        normed = rms_norm(groups, groups.new_ones(groups.shape[-1]), self.config.norm_eps)
        return (normed.flatten(-2) * self.weight).to(x.dtype)


class StateSpace(Recurrence):
    """Mamba-2 (Dao and Gu 2024, §7.1), whose state starts with the cached state or, without a cache, with zeros.

    Zeros replace masked padding before and after the convolutions, so padding only lets the state decay.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.D = nn.Parameter(torch.ones(config.recurrent_heads))
        self.gated_norm = GatedGroupNorm(config)

    def forward(self, x: Hidden, context: Context) -> Hidden:
        config, tap, x = self.config, context.tap, unpadded(self.config, x, context)
        heads, shared = config.recurrent_heads, config.recurrent_key_heads
        query, key, value = (
            tap(f"{name}_convolved", unpadded(config, convolve(self, name, x, context), context))
            for name in ("query", "key", "value")
        )
        step = tap("time_step", time_step(self, x).to(x.dtype))
        decay = tap("log_decay", log_decay(self, step))
        query, key = (upcast(repeat_heads(split_heads(each, shared), heads)) for each in (query, key))
        state, value = first_state(config, query, context), upcast(split_heads(value, heads))
        read, state = state_space_rule(query, key, value, by_head(decay, context), by_head(step, context), state)
        read = read + upcast(self.D)[:, None, None] * value
        if context.cache is not None:
            context.cache["state"].copy_(state)
        read = tap("context", merge_heads(read).to(x.dtype))
        return tap("output", self.output(tap("gated_context", self.gated_norm(read, self.gate(x)))))
