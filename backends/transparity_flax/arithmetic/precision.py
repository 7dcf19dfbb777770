"""Sums and soft capping in at least float32, because lower precision would lose small terms."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def upcast(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """Return `x` in at least float32."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def apply_softcap(x: Float[Array, "*batch"], cap: float) -> Float[Array, "*batch"]:
    """cap · tanh(x / cap) (Gemma 2): close to x for small |x|, and always between −cap and cap."""
    return (jnp.tanh(upcast(x) / cap) * cap).astype(x.dtype)
