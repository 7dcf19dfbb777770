"""Chunks for recurrences: all positions of a chunk are computed at once (Yang et al. 2025, §3.3; Dao and Gu 2024,
§6)."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

CHUNK = 64
"""Tokens per chunk; the state is computed once per chunk."""


def chunk_decays(
    log_decay: Float[Tensor, "batch heads length"],
) -> tuple[Float[Tensor, "batch heads length length"], Float[Tensor, "batch heads length 1"]]:
    """Return the share of the state that remains from each position of a chunk to each later one, and from the chunk's
    start."""
    # The sums start at each position, because differences of sums from the beginning would lose digits.
    onward = log_decay[..., None].expand(*log_decay.shape, log_decay.shape[-1]).tril(-1).cumsum(dim=-2)
    return onward.exp().tril(), log_decay.cumsum(dim=-1).exp()[..., None]
