import math
from typing import Any

import torch
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.inputs import INPUTS
from transparity_pytorch.mixers import MIXERS
from transparity_pytorch.rotary import SCALINGS
from transparity_pytorch.rotary.plain import plain_frequencies
from transparity_pytorch.state.cache import held_tokens
from transparity_pytorch.state.context import Context


class MeanOfPast(nn.Module):
    """Σ x Wᵀ / count, over the positions up to each query; the cache holds the sum."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.value = nn.Linear(config.embed_dim, config.embed_dim, bias=False)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        value = upcast(self.value(x))
        if context.cache is None:
            sums = value.cumsum(dim=1)
        else:
            sums = context.cache["sum"][:, None] + held_tokens(value, context.valid_lengths).cumsum(dim=1)
            context.cache["sum"].copy_(sums[:, -1])
        mean: Tensor = context.tap("output", (sums / (context.positions[..., None] + 1)).to(x.dtype))
        return mean


def feature_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    return {"feature_projection": nn.Linear(config.mel_bins or 0, config.embed_dim)}


def embed_features(config: TransformerConfig, module: Any, x: Tensor, tap: Tap = identity) -> Tensor:
    """x Wᵀ + b."""
    projected: Tensor = module.feature_projection(x.to(module.feature_projection.weight.dtype))
    return projected


def root_frequencies(config: TransformerConfig, device: torch.device | str | None = None) -> Tensor:
    """frequency / √factor."""
    frequencies: Tensor = plain_frequencies(config, device)
    return frequencies / math.sqrt(config.rotary_factor)


ROWS = (
    (MIXERS, "mean", MeanOfPast),
    (INPUTS, "features", (feature_parts, embed_features)),
    (SCALINGS, "root", root_frequencies),
)
