"""Rotary positions, and the scalings of their angles for long sequences, with one scaling per file."""

from collections.abc import Callable

from transparity_flax.rotary.linear import linear_frequencies
from transparity_flax.rotary.llama3 import llama3_frequencies
from transparity_flax.rotary.longrope import longrope_frequencies
from transparity_flax.rotary.plain import plain_frequencies
from transparity_flax.rotary.yarn import yarn_frequencies
from transparity_flax.shapes import Frequencies

SCALINGS: dict[str, Callable[..., Frequencies]] = {
    "none": plain_frequencies,
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}
"""The function for each value of `config.rotary_scaling`."""
