"""Recurrence: a state, which each token decays, corrects and reads, in place of self-attention."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.attention import merge_heads, repeat_heads, split_heads
from transparity_pytorch.normalization import rms_norm
from transparity_pytorch.state.cache import Cache, held_tokens, update_inputs, update_state
from transparity_pytorch.state.context import LayerContext

UNIT_EPS = 1e-6
"""Added to the square of the length of queries and keys, under the root (Qwen3-Next)."""

CHUNK = 64
"""Positions that the state is not computed between."""


def causal_convolution(
    weight: Float[Tensor, "features width"],
    x: Float[Tensor, "batch length features"],
    before: Float[Tensor, "batch earlier features"],
) -> Float[Tensor, "batch length features"]:
    """Sum of each feature's last `width` numbers, its own the last, each times a weight of the feature; those in front
    of `x` are `before`."""
    x = torch.cat([before, x], dim=1)
    return F.conv1d(x.transpose(1, 2), weight[:, None], groups=len(weight)).transpose(1, 2)


def unit_length(x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
    """x / √(Σ x² + eps) over the features."""
    wide = upcast(x)
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + UNIT_EPS)).to(x.dtype)


def log_decay(module: Recurrence, x: Float[Tensor, "batch length embed_dim"]) -> Float[Tensor, "batch length heads"]:
    """Logarithm of the share of the state that stays: −exp(log_rate) · softplus(x Wᵀ + b) (Gu and Dao 2024)."""
    x = upcast(module.decay(x))
    # Unlike `softplus`, which is the identity from 20 on, exact in every precision.
    return -upcast(module.log_rate).exp() * torch.logaddexp(x, torch.zeros_like(x))


def gated_delta_rule(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    log_decay: Float[Tensor, "batch heads length"],
    beta: Float[Tensor, "batch heads length"],
    state: Float[Tensor, "batch heads head_dim value_dim"],
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state: S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); then
    q S / √head_dim (Yang et al. 2025, eq. 10). Chunk by chunk (§3.3 there): the changes that a chunk's tokens make
    depend on those of earlier ones alone, so they are the solution of a triangular system."""
    reads, query = [], query * query.shape[-1] ** -0.5
    for q, k, v, g, b in zip(*(x.split(CHUNK, dim=2) for x in (query, key, value, log_decay, beta)), strict=True):
        # Sums from one position to another: their differences from the begin of the chunk would lose digits.
        passed = g[..., None].expand(*g.shape, g.shape[-1]).tril(-1).cumsum(dim=-2)
        between = passed.exp().tril()
        begun, strength = g.cumsum(dim=-1).exp()[..., None], b[..., None]
        change = torch.linalg.solve_triangular(
            (strength * k @ k.mT * between).tril(-1),
            strength * (v - begun * (k @ state)),
            upper=False,
            unitriangular=True,
        )
        reads.append(begun * (q @ state) + q @ k.mT * between @ change)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ change
    return torch.cat(reads, dim=2), state


def gated_norm(
    config: TransformerConfig,
    norm: _GatedNorm,
    x: Float[Tensor, "batch length features"],
    gate: Float[Tensor, "batch length features"],
) -> Float[Tensor, "batch length features"]:
    """RMS norm of each head, whose gain is its weight, times silu of the gate."""
    heads = x.unflatten(-1, (config.recurrent_heads, -1))
    return rms_norm(heads, norm.weight, config.norm_eps).flatten(-2) * F.silu(gate)


def convolve(
    module: Recurrence,
    name: str,
    x: Float[Tensor, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Float[Tensor, "batch length features"]:
    """The `query`, `key` or `value` of all heads: projected, convolved over time, and through silu."""
    x = getattr(module, name)(x)
    before = x.new_zeros(len(x), module.config.convolution_width - 1, x.shape[-1])
    if cache is not None:
        before = update_inputs(cache, name, x, context.counts)
    return tap(
        f"{name}_convolved", F.silu(causal_convolution(getattr(module, f"{name}_convolution").weight, x, before))
    )


class _GatedNorm(nn.Module):
    """The gain of `gated_norm`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))


class _Convolution(nn.Module):
    """The weights of `causal_convolution`."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, width))


class Recurrence(nn.Module):
    """Gated delta network (Yang et al. 2025, §3.4); with a `cache`, it goes on from the state there.

    Padding is zeros: it writes nothing of its own, but decays the state, and convolutions pass over it.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        for name, features in config.convolution_dims.items():
            setattr(self, name, nn.Linear(config.embed_dim, features, bias=False))
            setattr(self, f"{name}_convolution", _Convolution(features, config.convolution_width))
        self.decay = nn.Linear(config.embed_dim, config.recurrent_heads)
        self.log_rate = nn.Parameter(torch.zeros(config.recurrent_heads))
        self.beta = nn.Linear(config.embed_dim, config.recurrent_heads, bias=False)
        self.gate = nn.Linear(config.embed_dim, config.recurrent_dim, bias=False)
        self.gated_norm = _GatedNorm(config.recurrent_value_dim)
        self.output = nn.Linear(config.recurrent_dim, config.embed_dim, bias=False)

    def forward(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        if context.visible is not None:
            x = x * context.visible[..., None].to(x.dtype)
        query, key, value = (convolve(self, name, x, context, tap, cache) for name in ("query", "key", "value"))
        heads, shared = self.config.recurrent_heads, self.config.recurrent_key_heads
        query = tap("query_normalized", unit_length(split_heads(query, shared)))
        key = tap("key_normalized", unit_length(split_heads(key, shared)))
        decay = tap("log_decay", log_decay(self, x).to(x.dtype))
        beta = tap("beta", torch.sigmoid(self.beta(x)))
        if cache is not None:
            decay, beta = held_tokens(decay, context.counts), held_tokens(beta, context.counts)
        query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
        decay, beta = (upcast(each.transpose(1, 2)) for each in (decay, beta))
        size = (len(x), heads, self.config.recurrent_key_dim, self.config.recurrent_value_dim)
        state = query.new_zeros(size) if cache is None else cache["state"]
        read, state = gated_delta_rule(query, key, upcast(split_heads(value, heads)), decay, beta, state)
        if cache is not None:
            update_state(cache, state)
        read = tap("context", merge_heads(read).to(x.dtype))
        y = tap("gated_context", gated_norm(self.config, self.gated_norm, read, self.gate(x)))
        return tap("output", self.output(y))
