"""The arguments that all layers of a stack share: masks, rotary tables, the tap function and the cache."""

from __future__ import annotations

from typing import Literal, NamedTuple

from jax import Array
from jaxtyping import Float

from transparity.taps import Tap, identity, scoped
from transparity_flax.shapes import IsToken, Lengths, MaskArray, Memory, Positions, RotaryTables, TokenIds
from transparity_flax.state.cache import Cache

MaskKind = Literal["causal", "full", "some"]
"""The kind of a mask. `causal`: exactly the causal mask, so a kernel need not read the array. `full`: hides nothing.
`some`: shows each query at least one key. The configuration determines the kind, because the mask cannot be read during
compilation."""


class Mask(NamedTuple):
    """A mask and its kind; None stands for an unknown kind."""

    array: MaskArray
    kind: MaskKind | None = None


class Context(NamedTuple):
    """The inputs of a stack or a layer, without the activations x and the weights.

    The mask, the rotary tables and the temperature are the same for all layers of a kind; `tap` and `cache` differ by
    layer. In the NumPy column, masks are plain arrays, and `training` is a field.
    """

    mask: Mask  # where self-attention may attend
    positions: Positions  # the queries' positions in their sequences
    is_token: IsToken  # True for keys that are not padding; with a cache, one value for each cached position
    token_types: TokenIds | None = None  # types whose embeddings are added to the token embeddings
    rotary: RotaryTables | None = None  # cosines and sines for queries and keys of self-attention
    valid_lengths: Lengths | None = None  # tokens of each row that are not fillers, for recurrences; None means all
    temperature: Float[Array, "#batch 1 queries 1"] | None = None  # a factor of the queries
    bias: Float[Array, "#batch heads queries keys"] | None = None  # added to the scores of self-attention
    memory: Memory | None = None  # the encoder's output; None if its keys and values are cached
    memory_mask: Mask | None = None  # where cross-attention may attend; None if there is no encoder
    tap: Tap = identity  # every named activation goes through this function
    cache: Cache | None = None  # the cache of the stack, of a layer or of a mixer (see `under`)

    def under(self, scope: str) -> Context:
        """Return the context of the submodule `scope`: its cache, and a tap function that puts `scope` before names."""
        cache = None if self.cache is None else self.cache.get(scope)
        return self._replace(tap=scoped(self.tap, scope), cache=cache)
