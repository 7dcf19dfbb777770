"""Low precision: a tap that rounds activations to fewer bits than they are computed in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """Tap that rounds every value to the nearest number of `dtype` and returns it in its own dtype.

    XLA may remove a cast to `dtype` and back, but not `reduce_precision`, which turns float16's subnormal numbers into
    zeros, so these are computed as multiples of the smallest one. (bfloat16's are also subnormal in float32, which XLA
    turns into zeros on a CPU anyway.)
    """
    limits = jnp.finfo(dtype)
    least, smallest = float(limits.smallest_normal), float(limits.smallest_subnormal)

    def rounded(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        reduced = jax.lax.reduce_precision(value, limits.nexp, limits.nmant)
        if jnp.dtype(dtype) != jnp.float16:
            return reduced
        return jnp.where(jnp.abs(value) < least, jnp.round(value / smallest) * smallest, reduced)

    return rounded
