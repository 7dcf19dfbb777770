"""Learned positions: rows of a table that is added to the embeddings."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import IsToken


def position_ids(
    config: TransformerConfig, is_token: IsToken, positions: Int[Tensor, "#batch length"]
) -> Int[Tensor, "#batch length"]:
    """Return the rows of the position table for the tokens at `positions`.

    With `position_count` "visible", only tokens that are not padding are counted, and padding has the row before the
    first (RoBERTa, OPT).
    """
    if config.position_count == "all":
        return positions + config.position_offset
    positions = positions.expand(len(is_token), positions.shape[1])
    counted = is_token.cumsum(dim=1) * is_token
    return counted.take_along_dim(positions, dim=1) + config.position_offset - 1
