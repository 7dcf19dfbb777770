"""Tables of positions as ports build them: in float32, by one of the usual formulas.

The reference computes angles in float64, so that the oracle is exact. Most programs compute them in float32, where an
angle at position p is off by some ulps of p. That is rounding, so it belongs to the noise: while the reference's own
error is measured, its tables are built as ports build them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.positions import RotaryTables, rotary_frequencies

Formula = Callable[[np.float32, np.ndarray], np.ndarray]

FORMULAS: tuple[Formula, ...] = (
    lambda base, shares: np.exp(-shares * np.log(base)),  # the Annotated Transformer, tensor2tensor, fairseq
    lambda base, shares: 1 / base**shares,  # Llama, GPT-NeoX, transformers
    lambda base, shares: base**-shares,  # RoFormer, x-transformers
)
"""From the base and 2 i / features in float32 to frequencies."""


def frequencies(base: float, features: int, index: int, steps: int | None = None) -> np.ndarray:
    """The frequencies (features / 2) in float32, by one of the formulas; the base would be that of feature `steps`."""
    shares = np.arange(0, features, 2, dtype=np.float32) / np.float32(steps or features)
    return FORMULAS[index % len(FORMULAS)](np.float32(base), shares).astype(np.float32)


def farthest_formula(config: TransformerConfig) -> int:
    """The formula whose frequencies are farthest from exact ones, and so its angles; 0 without such tables."""
    if not config.has_tables:
        return 0
    features = config.rotated_dim if config.positions == "rotary" else config.embed_dim
    exact = np.float64(config.rope_theta) ** -(np.arange(0, features, 2) / features)
    errors = [
        float(np.abs(frequencies(config.rope_theta, features, index) - exact).max()) for index in range(len(FORMULAS))
    ]
    return int(np.argmax(errors))


@contextlib.contextmanager
def built_in_float32(index: int) -> Iterator[None]:
    """Within the context, the reference builds its tables in float32, by the formula of that index."""

    def rotary_tables(config: TransformerConfig, positions: np.ndarray, dtype: Any) -> RotaryTables | None:
        if config.positions != "rotary":
            return None
        plain = np.float64(config.rope_theta) ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
        beyond, factor = (
            bool(positions.max() >= config.rotary_original_length),
            np.float32(config.rotary_attention_factor),
        )
        scaled = (rotary_frequencies(config, beyond=beyond) / plain).astype(np.float32)
        angles = positions.astype(np.float32)[..., None] * (
            frequencies(config.rope_theta, config.rotated_dim, index) * scaled
        )
        cosine, sine = np.cos(angles)[:, None] * factor, np.sin(angles)[:, None] * factor
        return cosine.astype(dtype), sine.astype(dtype)

    def sinusoidal_positions(length: int, embed_dim: int, base: float, layout: str, timescales: str) -> np.ndarray:
        steps = embed_dim if timescales == "exclusive" else embed_dim - 2
        angles = np.arange(length, dtype=np.float32)[:, None] * frequencies(base, embed_dim, index, steps)
        both = [np.sin(angles), np.cos(angles)]
        return np.stack(both, -1).reshape(length, embed_dim) if layout == "interleaved" else np.concatenate(both, -1)

    # The specification has no switch for this; it is measured here only.
    with (
        mock.patch("transparity_numpy.transformer.rotary_tables", rotary_tables),
        mock.patch("transparity_numpy.embeddings.sinusoidal_positions", sinusoidal_positions),
    ):
        yield
