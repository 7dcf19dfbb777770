"""Rotary tables: the cosine and sine of every angle, with the scaling that the configuration names."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float64

from transparity.config import TransformerConfig
from transparity_flax.rotary.linear import linear_frequencies
from transparity_flax.rotary.llama3 import llama3_frequencies
from transparity_flax.rotary.longrope import longrope_frequencies
from transparity_flax.rotary.plain import plain_frequencies
from transparity_flax.rotary.yarn import yarn_frequencies
from transparity_flax.shapes import Positions, RotaryTables

SCALINGS: dict[str, Callable[..., Float64[np.ndarray, " pairs"]]] = {
    "none": plain_frequencies,
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[np.ndarray, " pairs"]:
    """Return the angle per position of each pair of features, scaled for long sequences.

    Some scalings depend on whether the sequence is longer than the original length (`beyond`).
    """
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, keys: int, dtype: jnp.dtype) -> RotaryTables | None:
    """Return the cosine and sine of position · frequency, times the attention factor; None without rotary positions.

    NumPy computes the angles of the positions 0 … `keys` − 1 in float64 during tracing, since they are constants. JAX
    has float64 only if it is enabled.
    """
    if config.positions != "rotary":
        return None
    tables = _tables(config, keys, dtype)
    if config.rotary_depends_on_length:
        beyond, long = positions.max() >= config.rotary_original_length, _tables(config, keys, dtype, beyond=True)
        tables = (jnp.where(beyond, long[0], tables[0]), jnp.where(beyond, long[1], tables[1]))
    return tables[0][positions][:, None], tables[1][positions][:, None]


def _tables(
    config: TransformerConfig, keys: int, dtype: jnp.dtype, *, beyond: bool = False
) -> tuple[Float[Array, "keys pairs"], Float[Array, "keys pairs"]]:
    """Return the tables for the positions 0 … `keys` − 1."""
    angles = np.arange(keys)[:, None] * rotary_frequencies(config, beyond=beyond)
    factor = config.rotary_attention_factor
    return jnp.asarray(np.cos(angles) * factor, dtype), jnp.asarray(np.sin(angles) * factor, dtype)
