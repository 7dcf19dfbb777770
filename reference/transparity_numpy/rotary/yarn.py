"""YaRN (Peng et al. 2024): between two pairs of features, rotary angles go linearly from unscaled to scaled."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.rotary.plain import plain_frequencies


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """Return the pairs of features between which the angles go from unscaled to scaled (Peng et al. 2024, §3.2).

    The angles of these pairs make `rotary_fast_turns` and `rotary_slow_turns` turns in the original length. The
    authors' code rounds to whole pairs.
    """
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """(1 − share) · frequency / factor + share · frequency, where the share falls from 1 to 0 between `yarn_ends`."""
    frequencies = plain_frequencies(config)
    first, last = yarn_ends(config)
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies
