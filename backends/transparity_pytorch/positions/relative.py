"""Relative positions (T5): a learned bias of the scores for each range of distances."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Positions


def distances(positions: Positions, keys: int) -> Int[Tensor, "#batch queries keys"]:
    """Return key position − query position, for the keys at 0 … `keys` − 1."""
    return torch.arange(keys, device=positions.device) - positions[..., None]


def relative_buckets(
    distances: Int[Tensor, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Tensor, "*batch"]:
    """Return the bucket of each distance, key position − query position (Raffel et al. 2020, §2.1).

    In each direction, the first half of the buckets hold one distance each. The others hold ranges that grow
    geometrically up to `max_distance`. With `both`, half of all buckets are for later keys. Without it, later keys
    count as distance 0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, distances.abs()) if both else (buckets, (-distances).clamp(min=0))
    exact = buckets // 2
    shares = torch.arange(1, buckets - exact, dtype=torch.float64, device=distances.device) / (buckets - exact)
    # A range that starts at a whole number must not start just above it because the power was rounded.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + torch.where(distances < exact, distances, exact + torch.bucketize(distances, begins, right=True))


def relative_bias(
    config: TransformerConfig, table: nn.Embedding, positions: Positions, keys: int, *, both: bool
) -> Float[Tensor, "#batch heads queries keys"]:
    """table[bucket(key − query)] for each head; with `both`, queries also see later keys."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return table(buckets).movedim(-1, 1)
