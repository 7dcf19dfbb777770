import math
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import as_precise_as, linear
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.inputs import INPUTS
from transparity_numpy.mixers import MIXERS
from transparity_numpy.rotary import SCALINGS
from transparity_numpy.rotary.plain import plain_frequencies
from transparity_numpy.state.cache import held_tokens
from transparity_numpy.state.context import Context


def mean_of_past(config: TransformerConfig, parameters: Any, x: np.ndarray, context: Context) -> np.ndarray:
    """Σ x Wᵀ / count, over the positions up to each query; the cache holds the sum."""
    value = upcast(linear(parameters["value"], x))
    if context.cache is None:
        sums = value.cumsum(axis=1)
    else:
        sums = context.cache["sum"][:, None] + held_tokens(value, context.valid_lengths).cumsum(axis=1)
        context.cache["sum"] = sums[:, -1]
    return context.tap("output", as_precise_as(x, sums / (context.positions[..., None] + 1).astype(sums.dtype)))


def embed_features(config: TransformerConfig, parameters: Any, x: np.ndarray, tap: Tap = identity) -> np.ndarray:
    """x Wᵀ + b."""
    return linear(parameters["feature_projection"], x.astype(parameters["feature_projection"]["weight"].dtype))


def root_frequencies(config: TransformerConfig) -> np.ndarray:
    """frequency / √factor."""
    return plain_frequencies(config) / math.sqrt(config.rotary_factor)


ROWS = ((MIXERS, "mean", mean_of_past), (INPUTS, "features", embed_features), (SCALINGS, "root", root_frequencies))
