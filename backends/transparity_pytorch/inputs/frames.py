"""The embedding of frames of audio: two convolutions over time (Radford et al. 2022)."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.activations import ACTIVATIONS
from transparity_pytorch.shapes import Frames, Hidden


def frame_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return both convolutions of width 3; each pads its input with a frame of zeros at each end."""
    return {
        "first_convolution": nn.Conv1d(config.mel_bins or 0, config.embed_dim, 3, padding=1),
        "second_convolution": nn.Conv1d(config.embed_dim, config.embed_dim, 3, stride=2, padding=1),
    }


def convolved(
    convolution: nn.Conv1d, x: Float[Tensor, "batch features_in frames"]
) -> Float[Tensor, "batch length features_out"]:
    """gelu(convolution over time), with the features last."""
    return ACTIVATIONS["gelu"](convolution(x).transpose(1, 2))


def embed_frames(config: TransformerConfig, module: Any, frames: Frames, tap: Tap = identity) -> Hidden:
    """Two convolutions over time, the second with stride 2 (Radford et al. 2022, §2.2)."""
    first, second = module.first_convolution, module.second_convolution
    x = tap("first_convolution", convolved(first, frames.to(first.weight.dtype)))
    return tap("second_convolution", convolved(second, x.transpose(1, 2)))
