"""The bias of the scores by distance, for relative positions and ALiBi."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.positions.alibi import alibi_bias
from transparity_flax.positions.relative import relative_bias
from transparity_flax.shapes import Positions


def score_bias(
    config: TransformerConfig, module: Any, positions: Positions, keys: int, dtype: jnp.dtype, *, both: bool
) -> Float[Array, "#batch heads queries keys"] | None:
    """Return the bias of the scores of queries at `positions` and keys at 0 … `keys` − 1; None if there is no bias.

    With `both`, queries also see later keys. `module` is the stack.
    """
    if config.has_relative_bias:
        return relative_bias(config, module.relative_bias, positions, keys, both=both)
    return alibi_bias(config, positions, keys, dtype) if config.positions == "alibi" else None
