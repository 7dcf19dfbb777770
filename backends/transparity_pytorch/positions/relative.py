"""Relative positions (T5): a learned bias of the scores for each range of distances."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Positions


def distances(positions: Positions, keys: int) -> Int[Tensor, "#batch queries keys"]:
    """Key position − query position, for keys 0 … `keys` − 1."""
    return torch.arange(keys, device=positions.device) - positions[..., None]


def relative_buckets(
    distances: Int[Tensor, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Tensor, "*batch"]:
    """Bucket of each distance key − query (Raffel et al. 2020, §2.1).

    Buckets in the first half hold one distance each; the others hold ranges that grow geometrically up to
    `max_distance`. With `both`, the second half of all buckets is for later keys; without, later keys count as distance
    0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, distances.abs()) if both else (buckets, (-distances).clamp(min=0))
    exact = buckets // 2
    shares = torch.arange(1, buckets - exact, dtype=torch.float64, device=distances.device) / (buckets - exact)
    # A range that begins at a whole number must not begin just above it because the power was rounded.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + torch.where(distances < exact, distances, exact + torch.bucketize(distances, begins, right=True))


def relative_bias(
    config: TransformerConfig, table: nn.Embedding, positions: Positions, keys: int, *, both: bool
) -> Float[Tensor, "#batch heads queries keys"]:
    """table[bucket(key − query)] of each head; with `both`, queries see later keys too."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return table(buckets).movedim(-1, 1)
