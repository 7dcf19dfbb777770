"""The embedding of frames of audio: two convolutions over time (Radford et al. 2022)."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.activations import ACTIVATIONS
from transparity_flax.shapes import Frames, Hidden


def convolved(
    projection: nnx.Linear, x: Float[Array, "batch frames features_in"], stride: int
) -> Float[Array, "batch length features_out"]:
    """gelu(convolution of width 3 over time), with a frame of zeros at each end.

    The kernel (features_out, features_in, 3) becomes a linear map of three adjacent frames.
    """
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    neighbours = jnp.stack([padded[:, i : i + x.shape[1] : stride] for i in range(3)], axis=-1)
    return ACTIVATIONS["gelu"](projection(neighbours.reshape(*neighbours.shape[:2], -1)))


class EmbedFrames(nnx.Module):
    """Two convolutions over time, the second with stride 2 (Radford et al. 2022, §2.2)."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.first_convolution = nnx.Linear(3 * (config.mel_bins or 0), config.embed_dim, rngs=rngs)
        self.second_convolution = nnx.Linear(3 * config.embed_dim, config.embed_dim, rngs=rngs)

    def __call__(self, frames: Frames, tap: Tap = identity) -> Hidden:
        first, second = self.first_convolution, self.second_convolution
        x = tap("first_convolution", convolved(first, frames.astype(first.kernel.dtype).swapaxes(1, 2), stride=1))
        return tap("second_convolution", convolved(second, x, stride=2))
