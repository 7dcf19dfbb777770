"""Low precision: a tap that rounds what flows through it, so that it is held in fewer bits than it is computed in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import DTypeLike, Float

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """A tap that rounds every value to the nearest number of `dtype`; what computes on goes on in its own. A cast there
    and back XLA may leave out; to reduce the precision it may not."""
    limits = jnp.finfo(dtype)

    def rounded(name: str, value: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
        return jax.lax.reduce_precision(value, limits.nexp, limits.nmant)

    return rounded
