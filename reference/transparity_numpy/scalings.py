"""The angle per position of each pair of features, for each kind of scaling to long sequences."""

from __future__ import annotations

import math

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.shapes import Frequencies


def plain_frequencies(config: TransformerConfig) -> Frequencies:
    """theta^(−2 i / features), the angle per position of pair i of the features (Su et al. 2021, §3.2.2)."""
    return config.rope_theta ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)


def linear_frequencies(config: TransformerConfig) -> Frequencies:
    """frequency / factor."""
    return plain_frequencies(config) / config.rotary_factor


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


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """features / 2 · log_theta(length / (2π turns)), for the fast and for the slow turns (Peng et al. 2024, §3.2).

    The transition to scaled angles begins and ends at these pairs of features. They make `rotary_fast_turns` and
    `rotary_slow_turns` in `rotary_original_length` positions. The authors' code rounds to whole pairs.
    """
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_frequencies(config: TransformerConfig) -> Frequencies:
    """(1 − share) · frequency / factor + share · frequency, where the share falls from 1 to 0 between `yarn_ends`."""
    frequencies = plain_frequencies(config)
    first, last = yarn_ends(config)
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies


def longrope_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    return plain_frequencies(config) / np.array(config.rotary_long_factors if beyond else config.rotary_short_factors)
