"""The cosines and sines by which queries and keys are rotated, for the scaling that the configuration names."""

from __future__ import annotations

import torch

from transparity.config import TransformerConfig
from transparity_pytorch.rotary import SCALINGS
from transparity_pytorch.shapes import Frequencies, Positions, RotaryTables


def rotary_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Frequencies:
    """Return each pair's scaled angle per position; `beyond` means in sequences longer than the original length."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, device, beyond=beyond) if config.rotary_depends_on_length else scaling(config, device)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: torch.dtype) -> RotaryTables:
    """factor · cos(position · frequency) and factor · sin(position · frequency), with the angles in float64."""
    frequencies = rotary_frequencies(config, positions.device)
    if config.rotary_depends_on_length:  # the largest position is known only on the device
        beyond = rotary_frequencies(config, positions.device, beyond=True)
        frequencies = torch.where(positions.max() >= config.rotary_original_length, beyond, frequencies)
    angles = (positions[..., None] * frequencies)[:, None]
    factor = config.rotary_attention_factor
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
