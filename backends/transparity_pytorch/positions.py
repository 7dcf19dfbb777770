"""Positions inside attention: queries and keys that are turned, and what distances add to scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from transparity.config import RopeLayout, TransformerConfig


class Places(NamedTuple):
    """What self-attention knows of positions, beside what was added to the embeddings."""

    rotation: tuple[Float[Tensor, "#batch 1 length pairs"], Float[Tensor, "#batch 1 length pairs"]] | None = None
    """The cosine and the sine of every angle that queries and keys are turned by."""
    bias: Float[Tensor, "#batch heads queries keys"] | None = None
    """What is added to scores."""


NOWHERE = Places()
"""Attention that knows of no positions: every cross-attention."""


def rotary_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None
) -> Float64[Tensor, " pairs"]:
    """base^(−2 i / features): by how much a step turns each pair of features (Su et al. 2021, §3.2.2), scaled for
    longer texts than the model was first trained on (Llama 3.1)."""
    features = torch.arange(0, config.rotated_dim, 2, dtype=torch.float64, device=device)
    frequencies = config.rope_theta ** -(features / config.rotated_dim)
    if config.rotary_scaling == "none":
        return frequencies
    slowed = frequencies / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    slow, fast = config.rotary_low_frequency, config.rotary_high_frequency
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    share = ((turns - slow) / (fast - slow)).clamp(0, 1)
    return (1 - share) * slowed + share * frequencies


def rotate(
    x: Float[Tensor, "batch heads length head_dim"],
    rotation: tuple[Float[Tensor, "#batch 1 length pairs"], Float[Tensor, "#batch 1 length pairs"]],
    pairs: RopeLayout,
) -> Float[Tensor, "batch heads length head_dim"]:
    """Each pair of features turned by its angle: (a cos − b sin, b cos + a sin). Features behind the pairs stay."""
    cosine, sine = rotation
    half = cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if pairs == "interleaved" else (turned[..., :half], turned[..., half:])
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if pairs == "interleaved":
        return torch.cat([torch.stack(both, dim=-1).flatten(-2), rest], dim=-1)
    return torch.cat([*both, rest], dim=-1)


def relative_buckets(
    distances: Int[Tensor, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Tensor, "*batch"]:
    """The bucket of each distance, key − query: near ones have their own, farther ones share, ever more of them (Raffel
    et al. 2020, §2.1): the first of the shared ones begins at the distance buckets/2, the others at distances that grow
    by one factor, up to `max_distance`. With `both` the second half of the buckets is for keys that come later; else
    those are as near as the query itself."""
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, distances.abs()) if both else (buckets, (-distances).clamp(min=0))
    exact = buckets // 2
    shares = torch.arange(1, buckets - exact, dtype=torch.float64, device=distances.device) / (buckets - exact)
    # What begins at a whole number has not begun before it, whatever the power was rounded to.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + torch.where(distances < exact, distances, exact + torch.bucketize(distances, begins, right=True))


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Float64[Tensor, " heads"]:
    """2^(−8 i / heads) for the i-th head, counted from 1; where heads are no power of two, those of the power below,
    and every other one of the power above (Press et al. 2022, §3, and their code)."""
    below = 2 ** int(math.log2(num_heads))
    steps = torch.arange(1, below + 1, dtype=torch.float64, device=device)
    slopes = 2.0 ** (-8 / below * steps)
    between = 2.0 ** (-4 / below * (2 * steps[: num_heads - below] - 1))
    return torch.cat([slopes, between])


def distances(positions: Int[Tensor, "#batch queries"], keys: int) -> Int[Tensor, "#batch queries keys"]:
    """How far each of so many keys stands behind the queries at `positions`: key − query."""
    return torch.arange(keys, device=positions.device) - positions[..., None]


def window_mask(
    positions: Int[Tensor, "#batch queries"], keys: int, window: int
) -> Bool[Tensor, "#batch 1 #queries keys"]:
    """Hides what is `window` positions away or farther (Beltagy et al. 2020, §3.1)."""
    return (distances(positions, keys).abs() < window)[:, None]


def places(
    config: TransformerConfig,
    relative_bias: nn.Embedding | None,
    positions: Int[Tensor, "#batch queries"],
    keys: int,
    dtype: torch.dtype,
    *,
    both: bool,
) -> Places:
    """What self-attention knows of queries at `positions` and of so many `keys`; with `both` it sees what comes later,
    too. `relative_bias` is a stack's."""
    if config.positions == "rotary":
        angles = (positions[..., None] * rotary_frequencies(config, positions.device))[:, None]
        return Places(rotation=(angles.cos().to(dtype), angles.sin().to(dtype)))
    if relative_bias is not None:
        limits = (config.relative_buckets, config.relative_max_distance)
        return Places(
            bias=relative_bias(relative_buckets(distances(positions, keys), *limits, both=both)).movedim(-1, 1)
        )
    if config.positions == "alibi":
        slopes = alibi_slopes(config.num_heads, positions.device).to(dtype)
        return Places(bias=-slopes[:, None, None] * distances(positions, keys).abs().to(dtype)[:, None])
    return NOWHERE
