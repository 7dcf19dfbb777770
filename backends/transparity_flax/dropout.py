"""Dropout: in training a share of what flows is dropped, at the taps that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Array, "*batch"]], rate: float) -> Tap:
    """A tap that keeps what its mask shows, divided by 1 − rate, and drops the rest (Srivastava et al. 2014); what has
    no mask flows on as it is."""

    def drop(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.where(masks[name], value / (1 - rate), 0) if name in masks else value

    return drop
