"""The arguments that all layers of a stack share: masks, rotary tables, the tap function and the cache."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Inexact
from numpy import ndarray as Array

from transparity.taps import Tap, identity, scoped
from transparity_numpy.shapes import IsToken, Lengths, Mask, Memory, Positions, RotaryTables, TokenIds
from transparity_numpy.state.cache import Cache


class Context(NamedTuple):
    """The inputs of a stack or a layer, without the activations x and the weights.

    The mask, the rotary tables and the temperature are the same for all layers of a kind; `tap` and `cache` differ by
    layer.
    """

    mask: Mask  # where self-attention may attend
    positions: Positions  # the queries' positions in their sequences
    is_token: IsToken  # True for keys that are not padding; with a cache, one value for each cached position
    token_types: TokenIds | None = None  # types whose embeddings are added to the token embeddings
    rotary: RotaryTables | None = None  # cosines and sines for queries and keys of self-attention
    valid_lengths: Lengths | None = None  # tokens of each row that are not fillers, for recurrences; None means all
    temperature: Inexact[Array, "#batch 1 queries 1"] | None = None  # a factor of the queries
    bias: Inexact[Array, "#batch heads queries keys"] | None = None  # added to the scores of self-attention
    memory: Memory | None = None  # the encoder's output; None if its keys and values are cached
    memory_mask: Bool[Array, "#batch 1 1 memory"] | None = None  # where cross-attention may attend, or None
    training: bool = False  # in training, a batch norm normalizes by the batch
    tap: Tap = identity  # every named activation goes through this function
    cache: Cache | None = None  # the cache of the stack, of a layer or of a mixer (see `under`)

    def under(self, scope: str) -> Context:
        """Return the context of the submodule `scope`: its cache, and a tap function that puts `scope` before names."""
        cache = None if self.cache is None else self.cache.get(scope)
        return self._replace(tap=scoped(self.tap, scope), cache=cache)
