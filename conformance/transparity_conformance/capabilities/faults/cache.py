"""Mistakes in decoding with a cache: at which positions tokens come to stand, and which of the keys they see."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.cache import positions_behind, show
from transparity_numpy.decoding import start
from transparity_numpy.embeddings import embed
from transparity_numpy.functional import nest
from transparity_numpy.head import head
from transparity_numpy.masks import cached_mask, padding_mask
from transparity_numpy.positions import places, rotate
from transparity_numpy.transformer import decoder

Positions = Callable[[np.ndarray], np.ndarray]
"""At which positions (batch, queries) tokens are taken to be that stand at these."""

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""What tokens at these positions (batch, queries) see of the keys (batch, keys) that may be seen."""


def _as_they_are(positions: np.ndarray) -> np.ndarray:
    return positions


def _moved(by: int) -> Positions:
    """Positions of all tokens behind the first chunk, moved."""
    return lambda positions: np.where(positions[:, :1] > 0, positions + by, positions)


def _does_not_see_itself(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    return cached_mask(np.maximum(positions - 1, 0), visible)


def _sees_the_chunk(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    return cached_mask(np.broadcast_to(positions[:, -1:], positions.shape), visible)


def _from_the_first_key(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    return cached_mask(positions - positions[:, :1], visible)


def _sees_the_chunk_alone(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    of_the_chunk: np.ndarray = (np.arange(visible.shape[1]) >= positions[:, :1])[:, None, None]
    return cached_mask(positions, visible) & of_the_chunk


def _sees_padding(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    return cached_mask(positions, np.ones_like(visible))


@dataclass(frozen=True)
class Caching:
    """How a port decodes with its cache: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    positions: Positions = _as_they_are
    mask: Mask = cached_mask
    masks_source: bool = True


CACHINGS = (
    Caching("cache-position", "positions begin at 0 again with every step", lambda at: at - at[:, :1]),
    Caching("cache-position", "behind the first step positions are one too far", _moved(1)),
    Caching("cache-position", "behind the first step positions are one too low", _moved(-1)),
    Caching("cache-position", "all tokens of a step stand at its first position", lambda at: at[:, :1] + 0 * at),
    Caching("cache-position", "all tokens of a step stand at its last position", lambda at: at[:, -1:] + 0 * at),
    Caching("cache-mask", "a token does not see itself", mask=_does_not_see_itself),
    Caching("cache-mask", "tokens of a step see those behind them in it", mask=_sees_the_chunk),
    Caching(
        "cache-mask",
        "the causal mask is laid from the first key, not from the step's",
        mask=_from_the_first_key,
    ),
    Caching("cache-mask", "only the step's own tokens are seen: the cache is not", mask=_sees_the_chunk_alone),
    Caching("cache-mask", "padding in the cache is seen", mask=_sees_padding),
    Caching("cache-mask", "padding in the source is seen", masks_source=False),
)
"""The likeliest first."""


def cached_logits(
    config: TransformerConfig, parameters: Arrays, inputs: Arrays, sizes: Sequence[int], how: Caching
) -> np.ndarray:
    """The logits (batch, length, vocab) of a port that decodes so, in steps of `sizes` tokens."""
    tokens, tree = inputs[config.input_names[-1]], nest(shared(config, parameters))
    given = inputs.get("attention_mask")
    of_source, of_tokens = (given, None) if config.has_encoder else (None, given)
    beside: dict[str, Any] = {"source": inputs.get("source"), "attention_mask": of_source}
    cache = start(config, parameters, len(tokens), config.max_length, **beside)
    memory_mask: Any = cache.get("memory_mask")
    memory_mask = memory_mask if memory_mask is None or how.masks_source else np.ones_like(memory_mask)
    said, begin = [], 0
    for size in sizes:
        chunk, positions = tokens[:, begin : begin + size], positions_behind(cache, size)
        shown = None if of_tokens is None else of_tokens[:, begin : begin + size]
        visible = show(cache, padding_mask(chunk, config.pad_id, shown)[:, 0, 0], positions)
        seen = visible if config.decoder_mask == "causal-and-padding" else np.ones_like(visible)
        x = decoder(
            config,
            tree["decoder"],
            chunk,
            how.mask(positions, seen),
            None,
            memory_mask,
            _standing(config, tree["decoder"], chunk, visible, positions, how.positions(positions)),
            visible=visible,
            cache=cache["layers"],
            positions=positions,
        )
        said.append(head(config, tree, x))
        cache["lengths"], begin = cache["lengths"] + size, begin + size
    return np.concatenate(said, axis=1)


def _standing(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: np.ndarray,
    visible: np.ndarray,
    positions: np.ndarray,
    taken: np.ndarray,
) -> Tap:
    """A tap that has tokens stand where they are taken to be, in place of their `positions`: in the embeddings, in how
    queries and keys are turned, and in the distances that add to scores. `parameters` are the decoder's."""
    in_table = np.clip(taken, 0, config.max_length - 1)
    # Where what is wrong is farther on than anything is, there are positions, too.
    room = np.pad(visible, ((0, 0), (0, config.max_length)))
    embedded = embed(config, parameters, tokens, room, in_table)
    keys, dtype = visible.shape[1], embedded.dtype
    right, wrong = (places(config, parameters, at, keys, dtype, both=False) for at in (positions, taken))
    before: dict[str, np.ndarray] = {}

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        role = name.rpartition(".")[2].partition("_")[0]
        if name == "embedding":
            return embedded
        if ".self_attention." not in name:
            return value
        if name.endswith("_rotated") and wrong.rotation is not None:
            return rotate(before[role], wrong.rotation, config.rope_layout)
        before[role] = value
        if role == "scores" and right.bias is not None and wrong.bias is not None:
            return value - right.bias + wrong.bias
        return value

    return tap
