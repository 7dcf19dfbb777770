import math

import numpy as np
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.inputs import INPUTS
from transparity_flax.mixers import MIXERS
from transparity_flax.rotary import SCALINGS
from transparity_flax.rotary.plain import plain_frequencies
from transparity_flax.state.cache import held_tokens
from transparity_flax.state.context import Context


class MeanOfPast(nnx.Module):
    """Σ x Wᵀ / count, over the positions up to each query; the cache holds the sum."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.value = nnx.Linear(config.embed_dim, config.embed_dim, use_bias=False, rngs=rngs)

    def __call__(self, x: Array, context: Context) -> Array:
        value = upcast(self.value(x))
        if context.cache is None:
            sums = value.cumsum(axis=1)
        else:
            sums = context.cache["sum"][:, None] + held_tokens(value, context.valid_lengths).cumsum(axis=1)
            context.cache["sum"] = sums[:, -1]
        mean: Array = context.tap("output", (sums / (context.positions[..., None] + 1)).astype(x.dtype))
        return mean


class EmbedFeatures(nnx.Module):
    """x Wᵀ + b."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.feature_projection = nnx.Linear(config.mel_bins or 0, config.embed_dim, rngs=rngs)

    def __call__(self, x: Array, tap: Tap = identity) -> Array:
        return self.feature_projection(x.astype(self.feature_projection.kernel.dtype))


def root_frequencies(config: TransformerConfig) -> np.ndarray:
    """frequency / √factor."""
    frequencies: np.ndarray = plain_frequencies(config)
    return frequencies / math.sqrt(config.rotary_factor)


ROWS = ((MIXERS, "mean", MeanOfPast), (INPUTS, "features", EmbedFeatures), (SCALINGS, "root", root_frequencies))
