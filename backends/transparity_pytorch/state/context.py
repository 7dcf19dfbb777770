"""The inputs of a layer besides x, its weights and its cache, as one value."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from transparity_pytorch.positions import RotaryTables

MaskKind = Literal["causal", "full", "some"]
"""What the configuration alone tells of a mask: it hides the future, it hides nothing, or every query sees some key. A
compiler needs it, because it has no values."""


class LayerContext(NamedTuple):
    """Masks, positions and memory of a layer; the same for every layer of a stack, except for windows in the mask."""

    mask: Bool[Tensor, "#batch 1 #queries keys"]
    """True where self-attention may attend."""
    positions: Int[Tensor, "#batch queries"]
    """Positions of the queries in their sequences."""
    rotary: RotaryTables | None = None
    """Cosines and sines for queries and keys of self-attention."""
    is_token: Bool[Tensor, "batch queries"] | None = None
    """True for tokens that are not padding, where it is masked; None: all. For a recurrence, which has no mask."""
    valid_lengths: Int[Tensor, " batch"] | None = None
    """The tokens of each row that a recurrence goes on from, in a cache; None: all. Fillers come after them."""
    temperature: Float[Tensor, "#batch 1 queries 1"] | None = None
    """Factor of the queries of self-attention."""
    bias: Float[Tensor, "#batch heads queries keys"] | None = None
    """Added to the scores of self-attention."""
    mask_kind: MaskKind | None = None
    """Of `mask`."""
    memory: Float[Tensor, "batch memory embed_dim"] | None = None
    """The encoder's output, for cross-attention; None if its keys and values are cached."""
    memory_mask: Bool[Tensor, "#batch 1 1 memory"] | None = None
    """True where cross-attention may attend; None without cross-attention."""
    memory_mask_kind: MaskKind | None = None
    """Of `memory_mask`."""
