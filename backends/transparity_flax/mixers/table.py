"""The table of mixers: each mixer has a file in this folder, and a row here."""

from __future__ import annotations

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
"""The function for each `config.mixer_name`."""
