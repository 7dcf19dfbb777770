"""Sums of half-precision values in float32, because small terms would be lost in lower precision. XLA does not do this
by itself."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def upcast(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return `x` in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
