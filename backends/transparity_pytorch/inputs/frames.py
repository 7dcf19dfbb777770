"""The embedding of frames of audio: two convolutions over time (Radford et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.activations import ACTIVATIONS
from transparity_pytorch.shapes import Frames, Hidden


def frame_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return the kernels (features, channels, 3) of both convolutions as linear maps of three adjacent frames."""
    return {
        "first_convolution": nn.Linear(3 * (config.mel_bins or 0), config.embed_dim),
        "second_convolution": nn.Linear(3 * config.embed_dim, config.embed_dim),
    }


def convolved(
    projection: nn.Linear, x: Float[Tensor, "batch frames features_in"], stride: int
) -> Float[Tensor, "batch length features_out"]:
    """gelu(convolution of width 3 over time), with a frame of zeros at each end.

    The kernel (features_out, features_in, 3) becomes a linear map of three adjacent frames.
    """
    padded = F.pad(x, (0, 0, 1, 1))
    neighbours = torch.stack([padded[:, i : i + x.shape[1] : stride] for i in range(3)], dim=-1)
    return ACTIVATIONS["gelu"](projection(neighbours.reshape(*neighbours.shape[:2], -1)))


def embed_frames(config: TransformerConfig, module: Any, frames: Frames, tap: Tap = identity) -> Hidden:
    """Two convolutions over time, the second with stride 2 (Radford et al. 2022, §2.2)."""
    first, second = module.first_convolution, module.second_convolution
    x = tap("first_convolution", convolved(first, frames.to(first.weight.dtype).transpose(1, 2), stride=1))
    return tap("second_convolution", convolved(second, x, stride=2))
