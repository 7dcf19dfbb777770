"""YaRN (Peng et al. 2024): slow angles are divided by a factor, with a linear transition over the pairs of features."""

from __future__ import annotations

import math

import torch

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.plain import plain_frequencies
from transparity_pytorch.shapes import Frequencies


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """Return the pairs of features at which the transition to divided angles starts and ends (Peng et al. 2024, §3.2).

    The pair with index features / 2 · log_theta(length / (2π turns)) makes `turns` turns in the original `length`. The
    transition starts at the pair with `rotary_fast_turns`, and ends at the pair with `rotary_slow_turns`. With
    `rotary_truncate`, as in the authors' code, both ends are rounded outward to whole pairs.
    """
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_frequencies(config: TransformerConfig, device: torch.device | str | None = None) -> Frequencies:
    """(1 − share) · frequency / factor + share · frequency, where the share falls from 1 to 0 between `yarn_ends`."""
    frequencies = plain_frequencies(config, device)
    first, last = yarn_ends(config)
    pairs = torch.arange(config.rotated_dim // 2, dtype=torch.float64, device=device)
    share = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies
