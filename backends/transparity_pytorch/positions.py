"""Positions inside attention: rotary tables for queries and keys, and biases of scores by distance."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from transparity.config import RopeLayout, TransformerConfig

RotaryTables = tuple[Float[Tensor, "#batch 1 length pairs"], Float[Tensor, "#batch 1 length pairs"]]
"""Cosine and sine of every angle by which queries and keys are rotated."""


def rotary_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Float64[Tensor, " pairs"]:
    """theta^(−2 i / features): the angle per position of each pair of features (Su et al. 2021, §3.2.2), scaled for
    sequences longer than in the original training; LongRoPE's also depend on whether this sequence is `beyond` it."""
    features = torch.arange(0, config.rotated_dim, 2, dtype=torch.float64, device=device)
    frequencies = config.rope_theta ** -(features / config.rotated_dim)
    if config.rotary_scaling == "none":
        return frequencies
    if config.rotary_scaling == "longrope":
        factors = config.rotary_long_factors if beyond else config.rotary_short_factors
        return frequencies / torch.tensor(factors, dtype=torch.float64, device=device)
    slowed = frequencies / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    yarn = config.rotary_scaling == "yarn"
    share = yarn_shares(config, device) if yarn else llama3_shares(config, frequencies)
    return (1 - share) * slowed + share * frequencies


def llama3_shares(config: TransformerConfig, frequencies: Float64[Tensor, " pairs"]) -> Float64[Tensor, " pairs"]:
    """Share of the unscaled angle in each scaled one, by the turns that it makes in the original length (Llama 3.1)."""
    slow, fast = config.rotary_slow_turns, config.rotary_fast_turns
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    return ((turns - slow) / (fast - slow)).clamp(0, 1)


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """Pairs of features between which YaRN goes from unscaled to scaled angles: those that make so many turns in the
    original length (Peng et al. 2024, §3.2; their code has whole pairs)."""
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_shares(config: TransformerConfig, device: torch.device | str | None = None) -> Float64[Tensor, " pairs"]:
    """Share of the unscaled angle in each of YaRN's, which falls linearly between two pairs of features."""
    first, last = yarn_ends(config)
    pairs = torch.arange(config.rotated_dim // 2, dtype=torch.float64, device=device)
    return 1 - ((pairs - first) / (last - first)).clamp(0, 1)


def rotate(
    x: Float[Tensor, "batch heads length head_dim"], tables: RotaryTables, layout: RopeLayout
) -> Float[Tensor, "batch heads length head_dim"]:
    """Rotate each pair (a, b) of features by its angle: (a cos − b sin, b cos + a sin); keep other features."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return torch.cat([torch.stack(both, dim=-1).flatten(-2), rest], dim=-1)
    return torch.cat([*both, rest], dim=-1)


def relative_buckets(
    distances: Int[Tensor, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Tensor, "*batch"]:
    """Bucket of each distance key − query (Raffel et al. 2020, §2.1).

    The first half of the buckets holds one distance each; the others hold ranges that grow by a constant factor up to
    `max_distance`. With `both`, the second half of all buckets is for later keys; without, later keys count as
    distance 0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, distances.abs()) if both else (buckets, (-distances).clamp(min=0))
    exact = buckets // 2
    shares = torch.arange(1, buckets - exact, dtype=torch.float64, device=distances.device) / (buckets - exact)
    # A range that begins at a whole number must not begin just above it because the power was rounded.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + torch.where(distances < exact, distances, exact + torch.bucketize(distances, begins, right=True))


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Float64[Tensor, " heads"]:
    """2^(−8 i / heads) for the i-th head, counted from 1; for a number of heads that is not a power of two, the slopes
    of the power below and every other one of the power above (Press et al. 2022, §3, and their code)."""
    below = 2 ** int(math.log2(num_heads))
    steps = torch.arange(1, below + 1, dtype=torch.float64, device=device)
    slopes = 2.0 ** (-8 / below * steps)
    between = 2.0 ** (-4 / below * (2 * steps[: num_heads - below] - 1))
    return torch.cat([slopes, between])


def distances(positions: Int[Tensor, "#batch queries"], keys: int) -> Int[Tensor, "#batch queries keys"]:
    """Key position − query position, for keys 0 … `keys` − 1."""
    return torch.arange(keys, device=positions.device) - positions[..., None]


def rotary_tables(
    config: TransformerConfig, positions: Int[Tensor, "#batch queries"], dtype: torch.dtype
) -> RotaryTables | None:
    """Cosine and sine of position · frequency, times the attention factor, computed in float64; None without RoPE."""
    if config.positions != "rotary":
        return None
    frequencies = rotary_frequencies(config, positions.device)
    if config.rotary_scaling == "longrope":
        beyond = rotary_frequencies(config, positions.device, beyond=True)
        frequencies = torch.where(positions.max() >= config.rotary_original_length, beyond, frequencies)
    angles = (positions[..., None] * frequencies)[:, None]
    factor = config.rotary_attention_factor
    return (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)


def query_temperature(
    config: TransformerConfig, positions: Int[Tensor, "#batch queries"], dtype: torch.dtype
) -> Float[Tensor, "#batch 1 queries 1"] | None:
    """1 + temperature · ln(1 + ⌊(position + first) / length⌋): the factor of each query, computed in float64; None
    if it is 1 everywhere (Llama 4, Ministral 3)."""
    if not config.query_temperature:
        return None
    pieces = (positions + config.query_temperature_first) // config.query_temperature_length
    return (1 + config.query_temperature * pieces.double().log1p()).to(dtype)[:, None, :, None]


def score_bias(
    config: TransformerConfig,
    relative_bias: nn.Embedding | None,
    positions: Int[Tensor, "#batch queries"],
    keys: int,
    dtype: torch.dtype,
    *,
    both: bool,
) -> Float[Tensor, "#batch heads queries keys"] | None:
    """Bias by distance that is added to scores: learned per bucket (T5) or linear (ALiBi); None for other positions.

    Args:
        relative_bias: The table of the stack, for learned biases.
        positions: Positions of the queries.
        keys: Number of keys.
        dtype: Of the activations.
        both: Whether queries see later keys too.
    """
    if relative_bias is not None:
        limits = (config.relative_buckets, config.relative_max_distance)
        buckets = relative_buckets(distances(positions, keys), *limits, both=both)
        return relative_bias(buckets).movedim(-1, 1)
    if config.positions == "alibi":
        slopes = alibi_slopes(config.num_heads, positions.device).to(dtype)
        return -slopes[:, None, None] * distances(positions, keys).abs().to(dtype)[:, None]
    return None
