"""Recurrence: a state, which each token decays, writes to and reads, in place of self-attention."""

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
    bias: Float[Tensor, " features"] | None = None,
) -> Float[Tensor, "batch length features"]:
    """Sum of each feature's last `width` numbers, its own the last, each times a weight of the feature, and `bias`;
    those in front of `x` are `before`."""
    x = torch.cat([before, x], dim=1)
    return F.conv1d(x.transpose(1, 2), weight[:, None], bias, groups=len(weight)).transpose(1, 2)


def unit_length(x: Float[Tensor, "*batch features"]) -> Float[Tensor, "*batch features"]:
    """x / √(Σ x² + eps) over the features."""
    wide = upcast(x)
    return (wide * torch.rsqrt(wide.square().sum(dim=-1, keepdim=True) + UNIT_EPS)).to(x.dtype)


def time_step(module: Recurrence, x: Float[Tensor, "batch length embed_dim"]) -> Float[Tensor, "batch length heads"]:
    """softplus(x Wᵀ + b), within bounds: the time that the state decays for (Gu and Dao 2024, §3.6)."""
    x = upcast(module.decay(x)) + upcast(module.dt_bias)
    # Unlike `softplus`, which is the identity from 20 on, exact in every precision.
    step = torch.logaddexp(x, torch.zeros_like(x))
    return step.clamp(module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Float[Tensor, "batch length heads"]) -> Float[Tensor, "batch length heads"]:
    """Logarithm of the share of the state that stays: −exp(A_log) · the time step (Gu and Dao 2024)."""
    return -upcast(module.A_log).exp() * step


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
        (between, begun), strength = _chunk_decays(g), b[..., None]
        change = torch.linalg.solve_triangular(
            (strength * k @ k.mT * between).tril(-1),
            strength * (v - begun * (k @ state)),
            upper=False,
            unitriangular=True,
        )
        reads.append(begun * (q @ state) + q @ k.mT * between @ change)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ change
    return torch.cat(reads, dim=2), state


def state_space_rule(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    log_decay: Float[Tensor, "batch heads length"],
    step: Float[Tensor, "batch heads length"],
    state: Float[Tensor, "batch heads head_dim value_dim"],
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state, which nothing corrects: S ← e^log_decay · S + k ⊗ step
    · v; then q S (Dao and Gu 2024, eq. 2; q, k and v are C, B and x there). Chunk by chunk (§6 there)."""
    reads, value = [], step[..., None] * value
    for q, k, v, g in zip(*(x.split(CHUNK, dim=2) for x in (query, key, value, log_decay)), strict=True):
        between, begun = _chunk_decays(g)
        reads.append(begun * (q @ state) + q @ k.mT * between @ v)
        state = begun[..., -1:, :] * state + (between[..., -1, :, None] * k).mT @ v
    return torch.cat(reads, dim=2), state


def gated_norm(
    config: TransformerConfig,
    norm: _GatedNorm,
    x: Float[Tensor, "batch length features"],
    gate: Float[Tensor, "batch length features"],
) -> Float[Tensor, "batch length features"]:
    """RMS norm of each head, whose gain is its weight, times silu of the gate; with a state-space model, of x · silu of
    the gate, over the heads that share a key, and each feature has a weight."""
    if config.mixer == "gated-delta":
        heads = x.unflatten(-1, (config.recurrent_heads, -1))
        return rms_norm(heads, norm.weight, config.norm_eps).flatten(-2) * F.silu(gate)
    groups = (upcast(x) * F.silu(upcast(gate))).unflatten(-1, (config.recurrent_key_heads, -1))
    return (rms_norm(groups, groups.new_ones(groups.shape[-1]), config.norm_eps).flatten(-2) * norm.weight).to(x.dtype)


def unpadded(x: Float[Tensor, "*batch features"], context: LayerContext) -> Float[Tensor, "*batch features"]:
    """`x` with zeros for padding, where it is masked."""
    return x if context.is_token is None else x * context.is_token[..., None].to(x.dtype)


def convolve(
    module: Recurrence,
    name: str,
    x: Float[Tensor, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Float[Tensor, "batch length features"]:
    """The `query`, `key` or `value` of all heads: projected, convolved over time, and through silu."""
    x, kernel = getattr(module, name)(x), getattr(module, f"{name}_convolution")
    before = x.new_zeros(len(x), module.config.convolution_width - 1, x.shape[-1])
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    y = F.silu(causal_convolution(kernel.weight, x, before, kernel.bias))
    return tap(f"{name}_convolved", unpadded(y, context) if module.config.mixer == "state-space" else y)


def rates(
    module: Recurrence,
    x: Float[Tensor, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> tuple[Float[Tensor, "batch heads length"], Float[Tensor, "batch heads length"]]:
    """Logarithm of the share of the state that each token leaves, and how strongly it writes: by beta, a sigmoid, or by
    the time step itself (`state-space`)."""
    step = time_step(module, x)
    if module.config.mixer == "gated-delta":
        strength = tap("beta", torch.sigmoid(module.beta(x)))
    else:
        strength = step = tap("time_step", step.to(x.dtype))
    decay = tap("log_decay", log_decay(module, step))
    if cache is not None:
        decay, strength = held_tokens(decay, context.valid_lengths), held_tokens(strength, context.valid_lengths)
    return upcast(decay.transpose(1, 2)), upcast(strength.transpose(1, 2))


def _chunk_decays(
    log_decay: Float[Tensor, "batch heads length"],
) -> tuple[Float[Tensor, "batch heads length length"], Float[Tensor, "batch heads length 1"]]:
    """The shares of the state that stay from each position of a chunk to each later one, and from its begin."""
    # Sums from each position on: differences of sums from the begin on would lose digits.
    onward = log_decay[..., None].expand(*log_decay.shape, log_decay.shape[-1]).tril(-1).cumsum(dim=-2)
    return onward.exp().tril(), log_decay.cumsum(dim=-1).exp()[..., None]


class _GatedNorm(nn.Module):
    """The gain of `gated_norm`."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))


class _Convolution(nn.Module):
    """The weights of `causal_convolution`, and its bias, if any."""

    def __init__(self, features: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, width))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None


class Recurrence(nn.Module):
    """Gated delta network (Yang et al. 2025, §3.4) or Mamba-2 (Dao and Gu 2024, §7.1); with a `cache`, it goes on from
    the state there.

    Padding is zeros: it writes nothing of its own, but decays the state, and convolutions pass over it.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        bias, is_delta = config.recurrent_bias, config.mixer == "gated-delta"
        for name, features in config.convolution_dims.items():
            setattr(self, name, nn.Linear(config.embed_dim, features, bias=bias))
            kernel = _Convolution(features, config.convolution_width, bias=config.convolution_bias)
            setattr(self, f"{name}_convolution", kernel)
        self.decay = nn.Linear(config.embed_dim, config.recurrent_heads, bias=bias)
        self.dt_bias = nn.Parameter(torch.zeros(config.recurrent_heads))
        self.A_log = nn.Parameter(torch.zeros(config.recurrent_heads))
        if is_delta:
            self.beta = nn.Linear(config.embed_dim, config.recurrent_heads, bias=bias)
        else:
            self.D = nn.Parameter(torch.ones(config.recurrent_heads))
        self.gate = nn.Linear(config.embed_dim, config.recurrent_dim, bias=bias)
        self.gated_norm = _GatedNorm(config.recurrent_value_dim if is_delta else config.recurrent_dim)
        self.output = nn.Linear(config.recurrent_dim, config.embed_dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: Cache | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
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
        state = query.new_zeros(size) if cache is None else cache["state"]
        rule = gated_delta_rule if is_delta else state_space_rule
        read, state = rule(query, key, value, decay, strength, state)
        if not is_delta:
            read = read + upcast(self.D)[:, None, None] * value
        if cache is not None:
            update_state(cache, state)
        read = tap("context", merge_heads(read).to(x.dtype))
        y = tap("gated_context", gated_norm(config, self.gated_norm, read, self.gate(x)))
        return tap("output", self.output(y))
