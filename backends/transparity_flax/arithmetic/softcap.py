"""Soft capping of scores and logits."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity_flax.arithmetic.precision import upcast


def apply_softcap(x: Float[Array, "*batch"], cap: float) -> Float[Array, "*batch"]:
    """cap · tanh(x / cap): close to x where |x| is small, and always within ± cap (Gemma 2)."""
    return (jnp.tanh(upcast(x) / cap) * cap).astype(x.dtype)
