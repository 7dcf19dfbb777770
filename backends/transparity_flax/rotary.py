"""Rotary positions (Su et al. 2021): each pair of features is rotated by an angle that grows with the position.

Each scaling of the angles is a function in `scalings.py`, or in its own file, and a row of `SCALINGS`.
"""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transparity.config import RopeLayout, TransformerConfig
from transparity_flax import scalings
from transparity_flax.shapes import Frequencies, Heads, Positions, RotaryTables


def rotate(x: Heads, tables: RotaryTables, layout: RopeLayout) -> Heads:
    """Rotate pairs (a, b) of features: (a cos − b sin, b cos + a sin); the other features are unchanged."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return jnp.concatenate([jnp.stack(both, axis=-1).reshape(rotated.shape), rest], axis=-1)
    return jnp.concatenate([*both, rest], axis=-1)


SCALINGS: dict[str, Callable[..., Frequencies]] = {
    "none": scalings.plain_frequencies,
    "linear": scalings.linear_frequencies,
    "llama3": scalings.llama3_frequencies,
    "yarn": scalings.yarn_frequencies,
    "longrope": scalings.longrope_frequencies,
}


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """Return the scaled angle per position of each pair, for sequences up to the original length, or `beyond` it."""
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
    """Return the tables for the positions 0 … `keys` − 1."""
    angles = np.arange(keys)[:, None] * rotary_frequencies(config, beyond=beyond)
    factor = config.rotary_attention_factor
    return jnp.asarray(np.cos(angles) * factor, dtype), jnp.asarray(np.sin(angles) * factor, dtype)
