"""Faults in decoding with a cache: the positions of new tokens, and the keys that they see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap
from transparity_conformance.capabilities.faults import SimulatedFault
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
"""Maps the right positions (batch, queries) to those that the port uses."""

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The mask of queries at positions (batch, queries) over the visible keys (batch, keys)."""


def _as_they_are(positions: np.ndarray) -> np.ndarray:
    return positions


def _moved(by: int) -> Positions:
    """Move the positions of all tokens after the first chunk."""
    return lambda positions: np.where(positions[:, :1] > 0, positions + by, positions)


def _all_at(index: int) -> Positions:
    return lambda positions: np.broadcast_to(positions[:, [index]], positions.shape)


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


def simulate_decoding(
    config: TransformerConfig,
    parameters: Arrays,
    inputs: Arrays,
    sizes: Sequence[int],
    *,
    positions: Positions = _as_they_are,
    mask: Mask = cached_mask,
    masks_source: bool = True,
) -> np.ndarray:
    """Decode with a cache as the reference does, except where an option says otherwise.

    Args:
        sizes: the number of tokens of each step.
        positions: the positions that the port takes tokens to have.
        mask: the mask over the cache.
        masks_source: whether padding in the source is masked.

    Returns:
        Logits (batch, length, vocab).
    """
    tokens, tree = inputs[config.input_names[-1]], nest(shared(config, parameters))
    given = inputs.get("attention_mask")
    of_source, of_tokens = (given, None) if config.has_encoder else (None, given)
    cache = start(
        config, parameters, len(tokens), config.max_length, source=inputs.get("source"), attention_mask=of_source
    )
    memory_mask: Any = cache.get("memory_mask")
    memory_mask = memory_mask if memory_mask is None or masks_source else np.ones_like(memory_mask)
    logits, begin = [], 0
    for size in sizes:
        chunk, right = tokens[:, begin : begin + size], positions_behind(cache, size)
        chunk_mask = None if of_tokens is None else of_tokens[:, begin : begin + size]
        visible = show(cache, padding_mask(chunk, config.pad_id, chunk_mask)[:, 0, 0], right)
        masked = visible if config.decoder_mask == "causal-and-padding" else np.ones_like(visible)
        moved = _at_positions(config, tree["decoder"], chunk, visible, right, positions(right))
        beside = (mask(right, masked), None, memory_mask, moved)
        layers = cache["layers"]
        x = decoder(config, tree["decoder"], chunk, *beside, visible=visible, cache=layers, positions=right)
        logits.append(head(config, tree, x))
        cache["lengths"], begin = cache["lengths"] + size, begin + size
    return np.concatenate(logits, axis=1)


def _at_positions(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: np.ndarray,
    visible: np.ndarray,
    positions: np.ndarray,
    taken: np.ndarray,
) -> Tap:
    """A tap that moves tokens from their `positions` to those `taken`: in the embeddings, in the rotation of queries
    and keys, and in the bias of scores. `parameters` are the decoder's."""
    in_table = np.clip(taken, 0, config.max_length - 1)
    # Wrong positions may lie beyond the longest right one.
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


def _fault(id: str, says: str, **options: Any) -> SimulatedFault:
    return SimulatedFault(id, says, functools.partial(simulate_decoding, **options))


CACHE_FAULTS = (
    _fault("cache-position", "positions begin at 0 again with every step", positions=lambda at: at - at[:, :1]),
    _fault("cache-position", "behind the first step positions are one too far", positions=_moved(1)),
    _fault("cache-position", "behind the first step positions are one too low", positions=_moved(-1)),
    _fault("cache-position", "all tokens of a step stand at its first position", positions=_all_at(0)),
    _fault("cache-position", "all tokens of a step stand at its last position", positions=_all_at(-1)),
    _fault("cache-mask", "a token does not see itself", mask=_does_not_see_itself),
    _fault("cache-mask", "tokens of a step see those behind them in it", mask=_sees_the_chunk),
    _fault(
        "cache-mask",
        "the causal mask is laid from the first key, not from the step's",
        mask=_from_the_first_key,
    ),
    _fault("cache-mask", "only the step's own tokens are seen: the cache is not", mask=_sees_the_chunk_alone),
    _fault("cache-mask", "padding in the cache is seen", mask=_sees_padding),
    _fault("cache-mask", "padding in the source is seen", masks_source=False),
)
"""The likeliest first."""
