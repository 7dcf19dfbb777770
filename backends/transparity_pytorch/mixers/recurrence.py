"""Functions for recurrences, which replace self-attention: each token decays a state, adds to it and reads it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.mixers.convolution import CausalConvolution
from transparity_pytorch.shapes import Features, Hidden
from transparity_pytorch.state.cache import Cache, held_tokens
from transparity_pytorch.state.context import LayerContext


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
        self.A_log = nn.Parameter(torch.zeros(heads))
        self.gate = nn.Linear(into, config.recurrent_dim, bias=bias)
        self.output = nn.Linear(config.recurrent_dim, into, bias=bias)


def unpadded(x: Features, context: LayerContext) -> Features:
    """Return `x` with zeros in place of padding, if padding is masked."""
    return x if context.is_token is None else x * context.is_token[..., None].to(x.dtype)


def time_step(module: Recurrence, x: Hidden) -> Float[Tensor, "batch length heads"]:
    """clip(softplus(x Wᵀ + dt_bias)), the time step of the state's decay (Gu and Dao 2024, §3.6)."""
    x = upcast(module.decay(x)) + upcast(module.dt_bias)
    # This is exact in every precision, unlike `softplus`, which returns its input from 20 on.
    step = torch.logaddexp(x, torch.zeros_like(x))
    return step.clamp(module.config.time_step_min, module.config.time_step_max)


def log_decay(module: Recurrence, step: Float[Tensor, "batch length heads"]) -> Float[Tensor, "batch length heads"]:
    """−exp(A_log) · time step, the logarithm of the share of the state that remains (Gu and Dao 2024)."""
    return -upcast(module.A_log).exp() * step


def by_head(
    x: Float[Tensor, "batch length heads"], context: LayerContext, cache: Cache | None
) -> Float[Tensor, "batch heads length"]:
    """Return `x` with heads before positions, in at least float32; numbers of filler tokens in a cache are 0."""
    return upcast((x if cache is None else held_tokens(x, context.valid_lengths)).transpose(1, 2))


def first_state(
    config: TransformerConfig, query: Float[Tensor, "batch heads length head_dim"], cache: Cache | None
) -> Float[Tensor, "batch heads head_dim value_dim"]:
    """Return the initial state: the state in the `cache`, or zeros."""
    size = (len(query), config.recurrent_heads, config.recurrent_key_dim, config.recurrent_value_dim)
    return query.new_zeros(size) if cache is None else cache["state"]
