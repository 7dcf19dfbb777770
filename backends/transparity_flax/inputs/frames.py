"""The embedding of frames of audio: two convolutions over time (Radford et al. 2022)."""

from __future__ import annotations

from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.activations import ACTIVATIONS
from transparity_flax.shapes import Frames, Hidden


def convolved(
    convolution: nnx.Conv, x: Float[Array, "batch frames features_in"]
) -> Float[Array, "batch length features_out"]:
    """gelu(convolution of width 3 over time)."""
    return ACTIVATIONS["gelu"](convolution(x))


class EmbedFrames(nnx.Module):
    """Two convolutions over time, the second with stride 2 (Radford et al. 2022, §2.2).

    Each convolution pads its input with a frame of zeros at each end.
    """

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        width = config.embed_dim
        self.first_convolution = nnx.Conv(config.mel_bins or 0, width, 3, padding=1, rngs=rngs)
        self.second_convolution = nnx.Conv(width, width, 3, strides=2, padding=1, rngs=rngs)

    def __call__(self, frames: Frames, tap: Tap = identity) -> Hidden:
        first, second = self.first_convolution, self.second_convolution
        x = tap("first_convolution", convolved(first, frames.astype(first.kernel.dtype).swapaxes(1, 2)))
        return tap("second_convolution", convolved(second, x))
