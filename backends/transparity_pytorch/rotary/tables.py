"""Rotary tables: the cosine and sine of every angle, with the scaling that the configuration names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float64
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.linear import linear_frequencies
from transparity_pytorch.rotary.llama3 import llama3_frequencies
from transparity_pytorch.rotary.longrope import longrope_frequencies
from transparity_pytorch.rotary.plain import plain_frequencies
from transparity_pytorch.rotary.yarn import yarn_frequencies
from transparity_pytorch.shapes import Positions, RotaryTables

SCALINGS: dict[str, Callable[..., Float64[Tensor, " pairs"]]] = {
    "none": plain_frequencies,
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}


def rotary_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Float64[Tensor, " pairs"]:
    """Return the angle per position of each pair of features, scaled for long sequences.

    Some scalings depend on whether the sequence is longer than the original length (`beyond`).
    """
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, device, beyond=beyond) if config.rotary_depends_on_length else scaling(config, device)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: torch.dtype) -> RotaryTables | None:
    """Return the cosine and sine of position · frequency, times the attention factor; None without rotary positions.

    The angles are computed in float64.
    """
    if config.positions != "rotary":
        return None
    frequencies = rotary_frequencies(config, positions.device)
    if config.rotary_depends_on_length:  # the largest position is known only on the device
        beyond = rotary_frequencies(config, positions.device, beyond=True)
        frequencies = torch.where(positions.max() >= config.rotary_original_length, beyond, frequencies)
    angles = (positions[..., None] * frequencies)[:, None]
    factor = config.rotary_attention_factor
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
