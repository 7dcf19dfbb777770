"""The embedding of images: a linear map of square patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.shapes import Hidden, Parameters, Pixels


def patches(config: TransformerConfig, pixels: Pixels) -> Inexact[Array, "batch patches patch_dim"]:
    """Return square patches, row by row; the values of a patch are ordered by channel, then row, then column."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def embed_patches(config: TransformerConfig, parameters: Parameters, pixels: Pixels, tap: Tap = identity) -> Hidden:
    """patch Wᵀ + b for each patch; a class token, if any, precedes the patches (Dosovitskiy et al. 2021, eq. 1)."""
    dtype = parameters["patch_projection"]["weight"].dtype
    x = linear(parameters["patch_projection"], patches(config, pixels.astype(dtype)))
    if not config.class_token:
        return x
    first = np.broadcast_to(parameters["class_embedding"]["weight"], (len(x), 1, config.embed_dim))
    return np.concatenate([first, x], axis=1)
