"""Rounding of activations to a lower precision than the computation has."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """Return a tap that rounds every activation to the nearest number of `dtype` and keeps the activation's own dtype.

    XLA may remove a cast to `dtype` and back, but not `reduce_precision`. But it turns float16's subnormal numbers into
    zeros, so they are rounded separately, to multiples of the smallest one. Subnormal numbers of bfloat16 are also
    subnormal in float32, and XLA turns them into zeros on a CPU.
    """
    limits = jnp.finfo(dtype)
    least, smallest = float(limits.smallest_normal), float(limits.smallest_subnormal)

    def rounded(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        reduced = jax.lax.reduce_precision(value, limits.nexp, limits.nmant)
        if jnp.dtype(dtype) != jnp.float16:
            return reduced
        return jnp.where(jnp.abs(value) < least, jnp.round(value / smallest) * smallest, reduced)

    return rounded
