"""Mixers, the sublayers that combine positions, one per file: attention, latent attention and recurrences."""

from collections.abc import Callable

from transparity_numpy.mixers.attention import self_attention
from transparity_numpy.mixers.gated_delta import gated_delta
from transparity_numpy.mixers.latent import latent_attention
from transparity_numpy.mixers.state_space import state_space
from transparity_numpy.shapes import Hidden

MIXERS: dict[str, Callable[..., Hidden]] = {
    "attention": self_attention,
    "latent": latent_attention,
    "gated-delta": gated_delta,
    "state-space": state_space,
}
"""The function for each value of `config.mixer_name`."""
