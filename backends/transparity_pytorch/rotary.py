"""Rotary positions (Su et al. 2021): each pair of features is rotated by an angle that grows with the position.

Each scaling of the angles is a function in `scalings.py`, or in its own file, and a row of `SCALINGS`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from transparity.config import RopeLayout, TransformerConfig
from transparity_pytorch import scalings
from transparity_pytorch.shapes import Frequencies, Heads, Positions, RotaryTables


def rotate(x: Heads, tables: RotaryTables, layout: RopeLayout) -> Heads:
    """Rotate pairs (a, b) of features: (a cos − b sin, b cos + a sin); the other features are unchanged."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return torch.cat([torch.stack(both, dim=-1).flatten(-2), rest], dim=-1)
    return torch.cat([*both, rest], dim=-1)


SCALINGS: dict[str, Callable[..., Frequencies]] = {
    "none": scalings.plain_frequencies,
    "linear": scalings.linear_frequencies,
    "llama3": scalings.llama3_frequencies,
    "yarn": scalings.yarn_frequencies,
    "longrope": scalings.longrope_frequencies,
}


def rotary_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Frequencies:
    """Return the scaled angle per position of each pair, for sequences up to the original length, or `beyond` it."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, device, beyond=beyond) if config.rotary_depends_on_length else scaling(config, device)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: torch.dtype) -> RotaryTables:
    """factor · cos(position · frequency) and factor · sin(position · frequency), where the angles are in float64."""
    frequencies = rotary_frequencies(config, positions.device)
    if config.rotary_depends_on_length:  # the largest position is known only on the device
        beyond = rotary_frequencies(config, positions.device, beyond=True)
        frequencies = torch.where(positions.max() >= config.rotary_original_length, beyond, frequencies)
    angles = (positions[..., None] * frequencies)[:, None]
    factor = config.rotary_attention_factor
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
