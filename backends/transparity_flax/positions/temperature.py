"""The query temperature: a factor of the queries that grows with the position (Llama 4, Ministral 3)."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.shapes import Positions


def query_temperature(
    config: TransformerConfig, positions: Positions, keys: int, dtype: jnp.dtype
) -> Float[Array, "#batch 1 queries 1"] | None:
    """1 + temperature · ln(1 + ⌊(position + first) / length⌋), or None if it is 1 everywhere.

    NumPy computes it in float64 for the positions 0 … `keys` − 1.
    """
    if not config.query_temperature:
        return None
    pieces = (np.arange(keys) + config.query_temperature_first) // config.query_temperature_length
    factors = jnp.asarray(1 + config.query_temperature * np.log1p(pieces), dtype)
    return factors[positions][:, None, :, None]
