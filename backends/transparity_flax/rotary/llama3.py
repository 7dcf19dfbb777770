"""The scaling of rotary angles in Llama 3.1: slow angles are divided by a factor, and fast angles are unchanged."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64

from transparity.config import TransformerConfig
from transparity_flax.rotary.plain import plain_frequencies


def llama3_frequencies(config: TransformerConfig) -> Float64[np.ndarray, " pairs"]:
    """(1 − share) · frequency / factor + share · frequency.

    The share rises from 0 to 1 between angles that make `rotary_slow_turns` and `rotary_fast_turns` turns in the
    original length.
    """
    frequencies = plain_frequencies(config)
    slow, fast = config.rotary_slow_turns, config.rotary_fast_turns
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies
