"""Faults in decoding with a cache: the positions of new tokens, and the keys that they see."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity
from transparity_conformance.capabilities.faults import simulated
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.attention import rotate_features
from transparity_numpy.decoding.steps import prefill
from transparity_numpy.embeddings import embed
from transparity_numpy.head import head
from transparity_numpy.masks import causal_mask, padding_mask, visible_keys, visible_queries
from transparity_numpy.positions import rotary_tables, score_bias
from transparity_numpy.state.cache import Cache, mark_valid, next_positions
from transparity_numpy.state.context import LayerContext
from transparity_numpy.transformer import stack

Positions = Callable[[np.ndarray], np.ndarray]
"""Maps the right positions (batch, queries) to those that the port uses."""

Mask = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""The mask of queries at positions (batch, queries) over the visible keys (batch, keys)."""


def _as_they_are(positions: np.ndarray) -> np.ndarray:
    return positions


def _cached_mask(positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
    """Visible keys up to each query's position."""
    return causal_mask(positions, visible.shape[1]) & padding_mask(visible)


def _from_zero(positions: np.ndarray) -> np.ndarray:
    return positions - positions[:, :1]


@dataclass(frozen=True)
class CacheRules:
    """The rules of decoding with a cache: the reference's by default."""

    positions: Positions = _as_they_are
    mask: Mask = _cached_mask
    queries: Positions = _as_they_are
    """Rotary positions of the queries alone."""
    kept: Positions = _as_they_are
    """Rotary positions with which keys are kept for later steps."""
    masks_source: bool = True
    """Whether padding in the source is masked."""
    clips: bool = False
    """Whether positions beyond `max_length` are the last one, as of tables that are looked up."""
    forgets: Collection[str] = ()
    """Entries of a recurrence's cache that are zeros again with every step."""
    grows: bool = False
    """Whether the cache has room for the tokens so far alone: a query that sees no key weighs all that there are."""


def simulate_decoding(
    config: TransformerConfig, parameters: Arrays, inputs: Arrays, sizes: Sequence[int], **options: Any
) -> np.ndarray:
    """Decode in steps of `sizes` tokens by the `CacheRules` that `options` give; logits (batch, length, vocab)."""
    rules = CacheRules(**options)
    tokens, tree = inputs[config.input_names[-1]], nest(shared(config, parameters))
    given = inputs.get("attention_mask")
    of_source, of_tokens = (given, None) if config.has_encoder else (None, given)
    capacity = 0 if rules.grows else config.max_length
    cache = prefill(config, parameters, len(tokens), capacity, source=inputs.get("source"), attention_mask=of_source)
    memory_mask: Any = cache.get("memory_mask")
    memory_mask = memory_mask if memory_mask is None or rules.masks_source else np.ones_like(memory_mask)
    logits, begin = [], 0
    for size in sizes:
        if rules.grows:
            _grow(cache, size)
        chunk, right = tokens[:, begin : begin + size], next_positions(cache, size)
        chunk_mask = None if of_tokens is None else of_tokens[:, begin : begin + size]
        visible = mark_valid(cache, visible_keys(chunk, config.pad_id, chunk_mask), right)
        seen = visible if config.decoder_mask == "causal-and-padding" else np.ones_like(visible)
        moved, decoder = rules.positions(right), tree["decoder"]
        moved = np.clip(moved, 0, config.max_length - 1) if rules.clips else moved
        x = _embedded(config, decoder, chunk, moved, visible)
        context = LayerContext(
            mask=rules.mask(right, seen),
            positions=right,
            bias=score_bias(config, decoder, moved, visible.shape[1], x.dtype, both=False),
            memory_mask=memory_mask,
            visible=visible_queries(seen, right) if config.is_recurrent else None,
        )
        _forget(cache, rules.forgets)
        queries = moved - right + rules.queries(right) - right
        tap = _turning(config, {"query_rotated": queries, "key_rotated": moved - right})
        x = stack("decoder", config, decoder, x, context, tap, cache=cache["layers"])
        _turn_kept_keys(config, cache, right, rules.kept(right) - right)
        logits.append(head(config, tree, x))
        cache["lengths"], begin = cache["lengths"] + size, begin + size
    return np.concatenate(logits, axis=1)


def _turning(config: TransformerConfig, by: Mapping[str, np.ndarray]) -> Tap:
    """A tap that rotates queries and keys on by so many positions (batch, queries), by the last part of their names."""
    if not any(steps.any() for steps in by.values()):
        return identity

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        steps = by.get(name.rpartition(".")[2])
        return value if steps is None else _turned(config, int(name.split(".")[1]), value, steps)

    return tap


def _turn_kept_keys(config: TransformerConfig, cache: Cache, positions: np.ndarray, by: np.ndarray) -> None:
    """Rotate the keys at `positions` (batch, queries) of a cache on by so many positions."""
    if not by.any():
        return
    rows = np.arange(len(positions))[:, None]
    for i, layer in enumerate(cache["layers"]):
        if "self_attention" not in layer:
            continue
        keys = layer["self_attention"]["key"]
        new = keys[rows, :, positions].swapaxes(1, 2)
        keys[rows, :, positions] = _turned(config, i, new, by).swapaxes(1, 2)


def _turned(config: TransformerConfig, layer: int, value: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Queries or keys of a layer rotated on by so many positions, if that layer has rotary positions."""
    own = config.for_layer("decoder", layer)
    tables = rotary_tables(own, by, value.dtype)
    return value if tables is None else rotate_features(own, value, tables)


def _forget(cache: Cache, names: Collection[str]) -> None:
    for layer in cache["layers"]:
        kept = layer.get("recurrence", {})
        layer["recurrence"] = kept | {name: np.zeros_like(kept[name]) for name in names if name in kept}


def _grow(cache: Cache, by: int) -> None:
    """Make room for `by` more tokens."""
    cache["visible"] = np.pad(cache["visible"], ((0, 0), (0, by)))
    for layer in cache["layers"]:
        if "self_attention" not in layer:
            continue
        room = ((0, 0), (0, 0), (0, by), (0, 0))
        layer["self_attention"] = {name: np.pad(value, room) for name, value in layer["self_attention"].items()}


def _embedded(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: np.ndarray,
    positions: np.ndarray,
    visible: np.ndarray,
) -> np.ndarray:
    """Embeddings of tokens at positions that may lie outside of the table, or past the last token."""
    room = np.pad(visible, ((0, 0), (0, config.max_length)))
    return embed(config, parameters, tokens, np.clip(positions, 0, config.max_length - 1), room)


_MASKS: dict[str, Mask] = {
    "a token does not see itself": lambda at, seen: _cached_mask(np.maximum(at - 1, 0), seen),
    "tokens of a step see later tokens of the step": lambda at, seen: _cached_mask(_all_at(-1)(at), seen),
    "the causal mask begins at the first key, not at the step's": lambda at, seen: _cached_mask(_from_zero(at), seen),
    "only the step's own tokens are visible: the cache is ignored": lambda at, seen: (
        _cached_mask(at, seen) & (np.arange(seen.shape[1]) >= at[:, :1])[:, None, None]
    ),
    "padding in the cache is visible": lambda at, seen: _cached_mask(at, np.ones_like(seen)),
}


def _all_at(index: int) -> Positions:
    return lambda positions: np.broadcast_to(positions[:, [index]], positions.shape)


def _moved(by: int) -> Positions:
    """Move the positions of all tokens after the first chunk."""
    return lambda positions: np.where(positions[:, :1] > 0, positions + by, positions)


_ONE_TOO_HIGH = "after the first step positions are one too high"
_QUERIES = "queries begin at position 0 again with every step, and keys do not"
_ZEROS = "convolutions of a recurrence read zeros in front of every step, not the last inputs"
_INPUTS = ("query", "key", "value")

CACHE_FAULTS = simulated(
    simulate_decoding,
    ("cache-position", "positions begin at 0 again with every step", {"positions": _from_zero}),
    ("cache-position", _ONE_TOO_HIGH, {"positions": _moved(1)}),
    ("cache-position", "after the first step positions are one too low", {"positions": _moved(-1)}),
    ("cache-position", "all tokens of a step have its first position", {"positions": _all_at(0)}),
    ("cache-position", "all tokens of a step have its last position", {"positions": _all_at(-1)}),
    *(("cache-mask", says, {"mask": mask}) for says, mask in _MASKS.items()),
    ("cache-mask", "padding in the source is visible", {"masks_source": False}),
    ("cache-position", _QUERIES, {"queries": _from_zero}),
    ("cache-position", "keys are kept before they are rotated", {"kept": np.zeros_like}),
    ("cache-state", "the state of a recurrence begins with zeros in every step", {"forgets": ("state",)}),
    ("cache-state", _ZEROS, {"forgets": _INPUTS}),
    ("cache-state", "nothing of a recurrence is kept from step to step", {"forgets": ("state", *_INPUTS)}),
    # the same in other caches, where they answer otherwise
    ("cache-position", _ONE_TOO_HIGH, {"positions": _moved(1), "clips": True}),
    *(("cache-mask", says, {"mask": mask, "grows": True}) for says, mask in _MASKS.items()),
)
