"""Linear scaling of rotary angles (Chen et al. 2023): positions are divided by a factor."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

from transparity.config import TransformerConfig
from transparity_flax.rotary.plain import plain_frequencies


def linear_frequencies(config: TransformerConfig) -> Float64[np.ndarray, " pairs"]:
    """frequency / factor."""
    return plain_frequencies(config) / config.rotary_factor
