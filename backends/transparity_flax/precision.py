"""Half precision, summed in float32: what is added up in fewer bits is lost one by one. XLA computes in the dtype that
it is given."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def upcast(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return `x` in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
