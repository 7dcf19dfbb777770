"""Positions of the port: sinusoids, rotations, and biases by distance."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def sinusoids(c: Any, length: int) -> Tensor:
    """The table (length, embed_dim) in float64; neighbours or halves share an angle."""
    exponent = torch.arange(0, c.embed_dim, 2, dtype=torch.float64) / c.embed_dim
    angles = torch.arange(length, dtype=torch.float64)[:, None] * c.rope_theta**-exponent
    sine, cosine = angles.sin(), angles.cos()
    if c.rope_layout == "halves":
        return torch.cat([sine, cosine], -1)
    return torch.stack([sine, cosine], -1).flatten(-2)


def inverse_frequencies(c: Any, head_dim: int) -> Tensor:
    """Angle per position of each pair of features, with linear or Llama 3.1's scaling."""
    width = c.rotary_dim or head_dim
    plain = 1.0 / c.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if c.rotary_scaling == "none":
        return plain
    if c.rotary_scaling == "linear":
        return plain / c.rotary_factor
    low, high, original = c.rotary_low_frequency, c.rotary_high_frequency, c.rotary_original_length
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / c.rotary_factor + smooth * plain
    scaled = torch.where(wavelength > original / low, plain / c.rotary_factor, plain)
    medium = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(medium, between, scaled)


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """`x` (batch, heads, length, head_dim), rotated; features beyond the rotated ones are kept."""
    angles = positions[..., None].double() * frequencies
    cosine, sine = angles.cos().to(x.dtype)[:, None], angles.sin().to(x.dtype)[:, None]
    width = 2 * frequencies.shape[-1]
    turned, rest = x[..., :width], x[..., width:]
    if layout == "interleaved":
        a, b = turned[..., ::2], turned[..., 1::2]
        turned = torch.stack([a * cosine - b * sine, a * sine + b * cosine], -1).flatten(-2)
    else:
        a, b = turned.chunk(2, -1)
        turned = torch.cat([a * cosine - b * sine, a * sine + b * cosine], -1)
    return torch.cat([turned, rest], -1)


def bucket(distance: Tensor, buckets: int, farthest: int, *, both: bool) -> Tensor:
    """T5's bucket of key − query."""
    found = torch.zeros_like(distance)
    if both:
        buckets //= 2
        found = found + (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = buckets // 2
    share = (distance.clamp(min=1).double() / exact).log() / math.log(farthest / exact)
    far = exact + (share * (buckets - exact) + 1e-9).long()
    return found + torch.where(distance < exact, distance, far.clamp(max=buckets - 1))


def slopes(heads: int) -> list[float]:
    """ALiBi's slope of each head."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    return first + more
