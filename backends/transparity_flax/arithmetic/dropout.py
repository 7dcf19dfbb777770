"""Dropout in training, applied to the activations that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Array, "*batch"]], rate: float) -> Tap:
    """Return a tap that multiplies values by their masks and divides them by 1 − rate (Srivastava et al. 2014).

    Activations without a mask are unchanged.
    """

    def drop(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.where(masks[name], value / (1 - rate), 0) if name in masks else value

    return drop


def dropped(at: tuple[str, ...], dropout: nnx.Dropout) -> Tap:
    """Return a tap that applies `dropout` to the activations whose names end with one of `at`."""

    def drop(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return dropout(value) if name.endswith(at) else value

    return drop
