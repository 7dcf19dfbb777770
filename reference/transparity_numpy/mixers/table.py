"""The table of mixers: each mixer has a file in this folder, and a row here."""

from __future__ import annotations

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
"""The function for each `config.mixer_name`."""
