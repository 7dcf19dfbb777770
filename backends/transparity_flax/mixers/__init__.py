"""Mixers, the sublayers that combine positions, one per file: attention, latent attention and recurrences."""

from collections.abc import Callable
from typing import Any

from transparity_flax.mixers.attention import SelfAttention
from transparity_flax.mixers.gated_delta import GatedDelta
from transparity_flax.mixers.latent import LatentAttention
from transparity_flax.mixers.state_space import StateSpace

MIXERS: dict[str, Callable[..., Any]] = {
    "attention": SelfAttention,
    "latent": LatentAttention,
    "gated-delta": GatedDelta,
    "state-space": StateSpace,
}
"""The class for each value of `config.mixer_name`."""
