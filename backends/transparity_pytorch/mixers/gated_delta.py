"""Gated delta network (Yang et al. 2025): each token corrects the value that the state has for its key."""

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

UNIT_EPS = 1e-6
"""Small number that is added under the square root when queries and keys are scaled to length 1 (Qwen3-Next)."""


def unit_length(x: QueryHeads) -> QueryHeads:
    """x / √(Σ x² + eps), where the sum is over the features."""
    wide = upcast(x)
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + UNIT_EPS)).to(x.dtype)


def gated_delta_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, beta: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); y = q S / √head_dim (Yang et al. 2025, eq. 10).

    Return y for each position, and the last state S. The positions of a chunk are computed at once (§3.3 of the paper).
    Each change of S depends on the earlier changes in the chunk, so the changes solve a triangular system of equations.
    """
    reads, query = [], query * query.shape[-1] ** -0.5
    for q, k, v, g, b in zip(*(x.split(CHUNK, dim=2) for x in (query, key, value, log_decay, beta)), strict=True):
        (between, begun), strength = chunk_decays(g), b[..., None]
        change = torch.linalg.solve_triangular(
            (strength * k @ k.mT * between).tril(-1),
            strength * (v - begun * (k @ state)),
            upper=False,
            unitriangular=True,
        )
        reads.append(begun * (q @ state) + q @ k.mT * between @ change)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ change
    return torch.cat(reads, dim=2), state


class GatedHeadNorm(nn.Module):
    """rms_norm(x) · silu(gate), with the norm over each head."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.ones(config.recurrent_value_dim))

    def forward(self, x: Channels, gate: Channels) -> Channels:
        heads = x.unflatten(-1, (self.config.recurrent_heads, -1))
        return rms_norm(heads, self.weight, self.config.norm_eps).flatten(-2) * F.silu(gate)


class GatedDelta(Recurrence):
    """Gated delta network (Yang et al. 2025, §3.4), whose state starts with the cached state or, without a cache, with
    zeros.

    Zeros replace masked padding in `x`. The convolutions still mix earlier tokens into the padding's keys and values.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.beta = nn.Linear(config.embed_dim, config.recurrent_heads, bias=config.recurrent_bias)
        self.gated_norm = GatedHeadNorm(config)

    def forward(self, x: Hidden, context: Context) -> Hidden:
        config, tap, x = self.config, context.tap, unpadded(self.config, x, context)
        heads, shared = config.recurrent_heads, config.recurrent_key_heads
        query, key, value = (
            tap(f"{name}_convolved", convolve(self, name, x, context)) for name in ("query", "key", "value")
        )
        query = tap("query_normalized", unit_length(split_heads(query, shared)))
        key = tap("key_normalized", unit_length(split_heads(key, shared)))
        decay = tap("log_decay", log_decay(self, time_step(self, x)))
        beta = tap("beta", torch.sigmoid(self.beta(x)))
        query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
        state, value = first_state(config, query, context), upcast(split_heads(value, heads))
        read, state = gated_delta_rule(query, key, value, by_head(decay, context), by_head(beta, context), state)
        if context.cache is not None:
            context.cache["state"].copy_(state)
        read = tap("context", merge_heads(read).to(x.dtype))
        return tap("output", self.output(tap("gated_context", self.gated_norm(read, self.gate(x)))))
