"""The cosines and sines by which queries and keys are rotated, for the scaling that the configuration names."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity_numpy.rotary import SCALINGS
from transparity_numpy.shapes import Frequencies, Positions, RotaryTables


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """Return each pair's scaled angle per position; `beyond` means in sequences longer than the original length."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: DTypeLike) -> RotaryTables:
    """factor · cos(position · frequency) and factor · sin(position · frequency), with the angles in float64."""
    beyond = bool(positions.max() >= config.rotary_original_length)
    angles = (positions[..., None] * rotary_frequencies(config, beyond=beyond))[:, None]
    factor = config.rotary_attention_factor
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)
