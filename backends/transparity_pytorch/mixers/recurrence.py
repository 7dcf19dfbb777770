"""Functions that all recurrences share: causal convolutions of queries, keys and values, and a state that decays."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import Channels, EarlierChannels, Hidden, PerHead, QueryHeads, Rates, State
from transparity_pytorch.state.cache import held_tokens, update_inputs
from transparity_pytorch.state.context import Context


class CausalConvolution(nn.Module):
    """yₜ = Σᵢ weight[width − 1 − i] · xₜ₋ᵢ + bias, for i = 0 … width − 1; `before` has the inputs before `x`."""

    def __init__(self, features: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, width))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(self, x: Channels, before: EarlierChannels) -> Channels:
        x = torch.cat([before, x], dim=1).transpose(1, 2)
        return F.conv1d(x, self.weight[:, None], self.bias, groups=len(self.weight)).transpose(1, 2)


def convolve(module: Any, name: str, x: Hidden, context: Context) -> Channels:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x = getattr(module, name)(x)
    before = x.new_zeros(len(x), module.config.convolution_width - 1, x.shape[-1])
    if context.cache is not None:
        before = update_inputs(context.cache, name, x, context.valid_lengths)
    return F.silu(getattr(module, f"{name}_convolution")(x, before))


CHUNK = 64
"""Tokens per chunk; the state is computed once per chunk."""


def chunk_decays(
    log_decay: PerHead,
) -> tuple[Float[Tensor, "batch heads length length"], Float[Tensor, "batch heads length 1"]]:
    """Return the share of each position's change that is left at each later position, and the share of the initial
    state."""
    # Each sum starts at its own position, because differences of sums from the start of the chunk would lose digits.
    onward = log_decay[..., None].expand(*log_decay.shape, log_decay.shape[-1]).tril(-1).cumsum(dim=-2)
    return onward.exp().tril(), log_decay.cumsum(dim=-1).exp()[..., None]


class Recurrence(nn.Module):
    """The linear maps, the convolutions and the decay of a recurrence."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        heads, into, bias = config.recurrent_heads, config.embed_dim, config.recurrent_bias
        for name, features in config.convolution_dims.items():
            kernel = CausalConvolution(features, config.convolution_width, bias=config.convolution_bias)
            self.add_module(name, nn.Linear(into, features, bias=bias))
            self.add_module(f"{name}_convolution", kernel)
        self.decay = nn.Linear(into, heads, bias=bias)
        self.dt_bias = nn.Parameter(torch.zeros(heads))
        self.A_log = nn.Parameter(torch.arange(1.0, heads + 1).log())  # the rates 1, 2 … of Mamba-2
        self.gate = nn.Linear(into, config.recurrent_dim, bias=bias)
        self.output = nn.Linear(config.recurrent_dim, into, bias=bias)


def unpadded(config: TransformerConfig, x: Channels, context: Context) -> Channels:
    """Return `x` with zeros in place of padding, if padding is masked."""
    if config.decoder_mask == "causal":
        return x
    positions = context.positions.expand(len(x), -1)
    return x * context.is_token.take_along_dim(positions, dim=1)[..., None].to(x.dtype)


def time_step(module: Recurrence, x: Hidden) -> Rates:
    """clip(softplus(x Wᵀ + dt_bias)), the time step of the state's decay (Gu and Dao 2024, §3.6)."""
    x = upcast(module.decay(x)) + upcast(module.dt_bias)
    # This is exact in every precision, unlike `softplus`, which returns its input from 20 on.
    step = torch.logaddexp(x, torch.zeros_like(x))
    return step.clamp(module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Rates) -> Rates:
    """−exp(A_log) · time step, the logarithm of the share of the state that remains (Gu and Dao 2024)."""
    return -upcast(module.A_log).exp() * step


def by_head(x: Rates, context: Context) -> PerHead:
    """Move the axis of heads before the positions, cast to at least float32, and zero tokens beyond `valid_lengths`."""
    return upcast((x if context.cache is None else held_tokens(x, context.valid_lengths)).transpose(1, 2))


def first_state(config: TransformerConfig, query: QueryHeads, context: Context) -> State:
    """Return the initial state: the state in the cache, or zeros."""
    size = (len(query), config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    return query.new_zeros(size) if context.cache is None else context.cache["state"]
