"""Low precision: a tap that rounds activations to fewer bits than they are computed in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """A tap that rounds every value to the nearest number of `dtype`; what computes on goes on in its own. A cast there
    and back XLA may leave out; to reduce the precision it may not, but that makes zeros of float16's smallest numbers,
    which are whole multiples of one. (bfloat16's are float32's, zeros to XLA on a CPU in any case.)"""
    limits = jnp.finfo(dtype)
    least, smallest = float(limits.smallest_normal), float(limits.smallest_subnormal)

    def rounded(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        reduced = jax.lax.reduce_precision(value, limits.nexp, limits.nmant)
        if jnp.dtype(dtype) != jnp.float16:
            return reduced
        return jnp.where(jnp.abs(value) < least, jnp.round(value / smallest) * smallest, reduced)

    return rounded
