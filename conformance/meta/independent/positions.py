"""The positions of the port: sinusoids, rotations, and biases by distance."""

import math
from typing import Any

import torch
from torch import Tensor


def sinusoids(c: Any, length: int) -> Tensor:
    """Return the sinusoids (length, embed_dim) in float64; features of a pair are neighbors or half the width apart."""
    last = c.embed_dim if c.sinusoidal_timescales == "exclusive" else c.embed_dim - 2
    exponent = torch.arange(0, c.embed_dim, 2, dtype=torch.float64) / last
    angles = torch.arange(length, dtype=torch.float64)[:, None] * c.rope_theta**-exponent
    sine, cosine = angles.sin(), angles.cos()
    if c.rope_layout == "halves":
        return torch.cat([sine, cosine], -1)
    return torch.stack([sine, cosine], -1).flatten(-2)


def inverse_frequencies(c: Any, head_dim: int, length: int = 0) -> Tensor:
    """Return the scaled angle per position for each pair of features; LongRoPE depends on the sequence `length`."""
    width = c.rotary_dim or head_dim
    plain = 1.0 / c.rope_theta ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    if c.rotary_scaling == "none":
        return plain
    if c.rotary_scaling == "linear":
        return plain / c.rotary_factor
    if c.rotary_scaling == "longrope":
        long = length > c.rotary_original_length
        return plain / torch.tensor(c.rotary_long_factors if long else c.rotary_short_factors, dtype=torch.float64)
    if c.rotary_scaling == "yarn":
        return yarn(c, plain, width)
    low, high, original = c.rotary_slow_turns, c.rotary_fast_turns, c.rotary_original_length
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / c.rotary_factor + smooth * plain
    scaled = torch.where(wavelength > original / low, plain / c.rotary_factor, plain)
    medium = (wavelength <= original / low) & (wavelength >= original / high)
    return torch.where(medium, between, scaled)


def yarn(c: Any, plain: Tensor, width: int) -> Tensor:
    """Return YaRN's angles, computed like the code of YaRN's authors. The angles of slow pairs are divided by the
    factor, the angles of fast pairs are unchanged, and a linear ramp connects both."""

    def pair_with(turns: float) -> float:
        return width * math.log(c.rotary_original_length / (turns * 2 * math.pi)) / (2 * math.log(c.rope_theta))

    low, high = pair_with(c.rotary_fast_turns), pair_with(c.rotary_slow_turns)
    if c.rotary_truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (torch.arange(width // 2, dtype=torch.float64) - low) / ((high - low) or 0.001)
    ramp = ramp.clamp(0, 1)
    return plain / c.rotary_factor * ramp + plain * (1 - ramp)


def rotate(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str, factor: float = 1.0) -> Tensor:
    """Rotate the first features of `x` (batch, heads, length, head_dim) and multiply them by `factor`."""
    angles = positions[..., None].double() * frequencies
    cosine, sine = factor * angles.cos(), factor * angles.sin()
    cosine, sine = cosine.to(x.dtype)[:, None], sine.to(x.dtype)[:, None]
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
    """Return T5's bucket for each distance (key − query)."""
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
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    more = [2 ** (-8 * (i + 1) / (2 * power)) for i in range(0, 2 * (heads - power), 2)]
    return first + more
