"""The inputs of a stack or a layer besides x and its weights, as one value."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array
from jaxtyping import Float

from transparity.taps import Tap, identity, scoped
from transparity_flax.shapes import IsToken, Lengths, MaskArray, Memory, Positions, RotaryTables, TokenIds
from transparity_flax.state.cache import Cache

MaskKind = Literal["causal", "full", "some"]
"""The kind of a mask: `causal` is exactly the causal mask, so that a kernel need not read the array; `full` hides
nothing; with `some`, every query sees a key. The configuration determines the kind, because compiled code cannot read
the mask's values."""


class Mask(NamedTuple):
    """A mask and its kind, as far as it is known."""

    array: MaskArray
    kind: MaskKind | None = None


class Context(NamedTuple):
    """The inputs of a stack or a layer besides x and its weights.

    The mask, the rotary tables and the temperature depend on the kind of the layer; `tap` and `cache`, on the layer.
    The NumPy column also has a field `training`, which modules have themselves.
    """

    mask: Mask
    """True where self-attention may attend."""
    positions: Positions
    """Positions of the queries in their sequences."""
    is_token: IsToken
    """True for keys that are not padding. With a cache, these are all positions of the cache."""
    token_types: TokenIds | None = None
    """The type of each token, which the embedding reads."""
    rotary: RotaryTables | None = None
    """Cosines and sines for queries and keys of self-attention."""
    valid_lengths: Lengths | None = None
    """For recurrences with a cache: the number of tokens of each row that are not fillers. None means all."""
    temperature: Float[Array, "#batch 1 queries 1"] | None = None
    """The query temperature: a factor of the queries of self-attention."""
    bias: Float[Array, "#batch heads queries keys"] | None = None
    """The bias that is added to the scores of self-attention."""
    memory: Memory | None = None
    """The encoder's output for cross-attention; None if its keys and values are cached."""
    memory_mask: Mask | None = None
    """True where cross-attention may attend; None without cross-attention."""
    tap: Tap = identity
    """The function that every named activation goes through."""
    cache: Cache | None = None
    """The whole cache for a stack, and the cached arrays by part for a layer, which updates them; None without one."""

    def under(self, scope: str) -> Context:
        """Return the context of the part `scope`, with the part's own names of activations and its own cache."""
        cache = None if self.cache is None else self.cache.get(scope)
        return self._replace(tap=scoped(self.tap, scope), cache=cache)
