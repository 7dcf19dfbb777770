"""Mixers, the sublayers that combine positions, one per file: attention, latent attention and recurrences."""

from collections.abc import Callable

from torch import nn

from transparity_pytorch.mixers.attention import SelfAttention
from transparity_pytorch.mixers.gated_delta import GatedDelta
from transparity_pytorch.mixers.latent import LatentAttention
from transparity_pytorch.mixers.state_space import StateSpace

MIXERS: dict[str, Callable[..., nn.Module]] = {
    "attention": SelfAttention,
    "latent": LatentAttention,
    "gated-delta": GatedDelta,
    "state-space": StateSpace,
}
"""The class for each value of `config.mixer_name`."""
