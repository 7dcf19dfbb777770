"""Half precision, summed in float32: the file without a twin. XLA computes in the dtype that it is given, while
PyTorch's kernels widen half precision inside and the reference is float64 to begin with."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def widened(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`x` in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
