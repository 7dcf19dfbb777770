"""The causal convolution before a recurrence, over the last few positions of each feature."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity_pytorch.shapes import Hidden
from transparity_pytorch.state.cache import Cache, update_inputs
from transparity_pytorch.state.context import LayerContext


class CausalConvolution(nn.Module):
    """yₜ = Σᵢ weightᵢ · xₜ₋ᵢ + bias, over the last `width` positions of each feature; `before` has the positions before
    `x`."""

    def __init__(self, features: int, width: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, width))
        self.bias = nn.Parameter(torch.zeros(features)) if bias else None

    def forward(
        self, x: Float[Tensor, "batch length features"], before: Float[Tensor, "batch earlier features"]
    ) -> Float[Tensor, "batch length features"]:
        x = torch.cat([before, x], dim=1).transpose(1, 2)
        return F.conv1d(x, self.weight[:, None], self.bias, groups=len(self.weight)).transpose(1, 2)


def convolve(
    module: Any, name: str, x: Hidden, context: LayerContext, cache: Cache | None = None
) -> Float[Tensor, "batch length features"]:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x = getattr(module, name)(x)
    before = x.new_zeros(len(x), module.config.convolution_width - 1, x.shape[-1])
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    return F.silu(getattr(module, f"{name}_convolution")(x, before))
