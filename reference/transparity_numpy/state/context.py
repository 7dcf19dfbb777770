"""The inputs of a layer besides x, its weights and its cache, as one value."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Inexact
from numpy import ndarray as Array

from transparity_numpy.shapes import IsQuery, Lengths, Mask, Memory, Positions, RotaryTables


class LayerContext(NamedTuple):
    """Masks, positions and memory of a layer; the same for every layer of a stack, except for windows in the mask."""

    mask: Mask
    """True where self-attention may attend."""
    positions: Positions
    """Positions of the queries in their sequences."""
    rotary: RotaryTables | None = None
    """Cosines and sines for queries and keys of self-attention."""
    is_token: IsQuery | None = None
    """True for tokens that are not padding, where it is masked; None: all. Only a recurrence reads it, because it has
    no mask."""
    valid_lengths: Lengths | None = None
    """Tokens of each row after which a recurrence continues, in a cache; None: all. Fillers follow them."""
    temperature: Inexact[Array, "#batch 1 queries 1"] | None = None
    """Factor of the queries of self-attention."""
    bias: Inexact[Array, "#batch heads queries keys"] | None = None
    """Added to the scores of self-attention."""
    memory: Memory | None = None
    """The encoder's output, for cross-attention; None if its keys and values are cached."""
    memory_mask: Bool[Array, "#batch 1 1 memory"] | None = None
    """True where cross-attention may attend; None without cross-attention."""
    training: bool = False
    """Whether the model is in training, where a batch norm normalizes by the batch."""
