"""The inputs of a layer besides x, its weights and its cache, as one value."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array
from jaxtyping import Float

from transparity_flax.shapes import IsQuery, Lengths, MaskArray, Memory, Positions, RotaryTables

MaskKind = Literal["causal", "full", "some"]
"""The content of a mask, as far as the configuration determines it: the future is hidden, nothing is hidden, or every
query sees some key. A compiler has no values to read it from."""


class Mask(NamedTuple):
    """A mask and its kind. NumPy has only the array."""

    array: MaskArray
    kind: MaskKind | None = None


class LayerContext(NamedTuple):
    """Masks, positions and memory of a layer; the same for every layer of a stack, except for windows in the mask.
    (NumPy has `training` too: here modules know.)"""

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
    temperature: Float[Array, "#batch 1 queries 1"] | None = None
    """Factor of the queries of self-attention."""
    bias: Float[Array, "#batch heads queries keys"] | None = None
    """Added to the scores of self-attention."""
    memory: Memory | None = None
    """The encoder's output, for cross-attention; None if its keys and values are cached."""
    memory_mask: Mask | None = None
    """True where cross-attention may attend; None without cross-attention."""
