"""The scaling of Llama 3.1: slow angles are divided by a factor, with a smooth transition to fast angles."""

from __future__ import annotations

import math

import numpy as np

from transparity.config import TransformerConfig
from transparity_flax.rotary.plain import plain_frequencies
from transparity_flax.shapes import Frequencies


def llama3_frequencies(config: TransformerConfig) -> Frequencies:
    """(1 − share) · frequency / factor + share · frequency.

    An angle that makes at most `rotary_slow_turns` full turns within the original length has the share 0. An angle that
    makes at least `rotary_fast_turns` full turns has the share 1. In between, the share rises linearly with the number
    of turns.
    """
    frequencies = plain_frequencies(config)
    slow, fast = config.rotary_slow_turns, config.rotary_fast_turns
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies
