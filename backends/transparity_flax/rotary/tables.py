"""The cosines and sines by which queries and keys are rotated, for the scaling that the configuration names."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.rotary import SCALINGS
from transparity_flax.shapes import Frequencies, Positions, RotaryTables


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """Return each pair's scaled angle per position; `beyond` means in sequences longer than the original length."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, keys: int, dtype: jnp.dtype) -> RotaryTables:
    """factor · cos(position · frequency) and factor · sin(position · frequency).

    NumPy computes the angles of the positions 0 … `keys` − 1 in float64 during tracing, since they are constants. JAX
    has float64 only if it is enabled.
    """
    tables = _tables(config, keys, dtype)
    if config.rotary_depends_on_length:
        beyond, long = positions.max() >= config.rotary_original_length, _tables(config, keys, dtype, beyond=True)
        tables = (jnp.where(beyond, long[0], tables[0]), jnp.where(beyond, long[1], tables[1]))
    return tables[0][positions][:, None], tables[1][positions][:, None]


def _tables(
    config: TransformerConfig, keys: int, dtype: jnp.dtype, *, beyond: bool = False
) -> tuple[Float[Array, "keys pairs"], Float[Array, "keys pairs"]]:
    angles = np.arange(keys)[:, None] * rotary_frequencies(config, beyond=beyond)
    factor = config.rotary_attention_factor
    return jnp.asarray(np.cos(angles) * factor, dtype), jnp.asarray(np.sin(angles) * factor, dtype)
