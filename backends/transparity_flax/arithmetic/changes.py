"""Tap functions that change activations: dropout in training, and rounding to a lower precision."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, DTypeLike, Float

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Array, "*batch"]], rate: float) -> Tap:
    """Return a tap function for dropout: x · mask / (1 − rate) for activations in `masks` (Srivastava et al. 2014)."""

    def drop(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jnp.where(masks[name], value / (1 - rate), 0) if name in masks else value

    return drop


def dropped(at: tuple[str, ...], dropout: nnx.Dropout) -> Tap:
    """Return a tap function that applies `dropout` to the activations whose names end with an entry of `at`."""

    def drop(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return dropout(value) if name.endswith(at) else value

    return drop


def rounding(dtype: DTypeLike) -> Tap:
    """Return a tap function that rounds every activation to the precision of `dtype`; the array's dtype stays the same.

    XLA may remove a cast to `dtype` and back, but does not remove `reduce_precision`. `reduce_precision` turns
    subnormal float16 numbers into zeros, so `rounded` rounds these numbers to multiples of the smallest subnormal. On a
    CPU, subnormal bfloat16 numbers become zeros, because XLA turns all subnormal float32 numbers into zeros.
    """
    limits = jnp.finfo(dtype)
    least, smallest = float(limits.smallest_normal), float(limits.smallest_subnormal)

    def rounded(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        reduced = jax.lax.reduce_precision(value, limits.nexp, limits.nmant)
        if jnp.dtype(dtype) != jnp.float16:
            return reduced
        return jnp.where(jnp.abs(value) < least, jnp.round(value / smallest) * smallest, reduced)

    return rounded
