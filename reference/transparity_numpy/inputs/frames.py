"""The embedding of frames of audio: two convolutions over time (Radford et al. 2022)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.shapes import Frames, Hidden, Parameters


def convolved(
    parameters: Parameters, x: Inexact[Array, "batch frames features_in"], stride: int
) -> Inexact[Array, "batch length features_out"]:
    """gelu(convolution of width 3 over time); a frame of zeros pads each end of `x`.

    The kernel (features_out, features_in, 3), reshaped to a matrix, multiplies each group of three adjacent frames.
    """
    padded, kernel = np.pad(x, ((0, 0), (1, 1), (0, 0))), parameters["weight"]
    neighbours = np.stack([padded[:, i : i + x.shape[1] : stride] for i in range(3)], axis=-1)
    flat = {**parameters, "weight": kernel.reshape(len(kernel), -1)}
    return ACTIVATIONS["gelu"](linear(flat, neighbours.reshape(*neighbours.shape[:2], -1)))


def embed_frames(config: TransformerConfig, parameters: Parameters, frames: Frames, tap: Tap = identity) -> Hidden:
    """Two convolutions over time, the second with stride 2 (Radford et al. 2022, §2.2)."""
    first, second = parameters["first_convolution"], parameters["second_convolution"]
    x = tap("first_convolution", convolved(first, frames.astype(first["weight"].dtype).swapaxes(1, 2), stride=1))
    return tap("second_convolution", convolved(second, x, stride=2))
