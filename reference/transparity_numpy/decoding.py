"""Decoding with a cache: the logits of the tokens that come next, without computing again what came before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.cache import Cache, empty_cache, positions_behind, show
from transparity_numpy.functional import nest
from transparity_numpy.head import head
from transparity_numpy.layers import memory_keys_and_values
from transparity_numpy.masks import cached_mask, padding_mask
from transparity_numpy.transformer import decoder, encoder, transformer


def start(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    batch: int,
    capacity: int,
    *,
    source: Int[Array, "batch keys"] | None = None,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens. The encoder runs here, and every decoder layer's keys and
    values of what it says are computed here, once. An `attention_mask` is of the source."""
    tree = nest(shared(config, parameters))
    cache = empty_cache(config, batch, capacity, tree["decoder"]["token_embedding"]["weight"].dtype)
    if source is not None:
        cache["memory_mask"] = padding_mask(source, config.pad_id, attention_mask)
        memory = encoder(config, tree["encoder"], source, cache["memory_mask"])
        for i in range(config.num_decoder_layers):
            layer = tree["decoder"]["layers"][str(i)]
            cache["layers"][i]["cross_attention"] = memory_keys_and_values(config, layer, memory)
    return cache


def step(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    tokens: Int[Array, "batch queries"],
    cache: Cache,
    *,
    counts: Int[Array, " batch"] | None = None,
    attention_mask: Bool[Array, "batch queries"] | Int[Array, "batch queries"] | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch queries vocab"]:
    """The logits behind each of the next `tokens`, as the full forward pass would have them; `cache` goes on by them.
    Padding that sees nothing weighs all keys alike: its own logits depend on the room there is.

    Of each row the first `counts` tokens count, all without it; what follows fills the row up, is never seen by what
    counts, and is written over by the next step. An `attention_mask` is of the tokens.
    """
    tree = nest(shared(config, parameters))
    positions = positions_behind(cache, tokens.shape[1])
    visible = show(cache, padding_mask(tokens, config.pad_id, attention_mask)[:, 0, 0], positions)
    hides_padding = config.decoder_mask == "causal-and-padding"
    mask = cached_mask(positions, visible if hides_padding else np.ones_like(visible))
    memory_mask, scope, kept = cache.get("memory_mask"), scoped(tap, "decoder"), cache["layers"]
    beside = (None, memory_mask, scope)
    x = decoder(config, tree["decoder"], tokens, mask, *beside, visible=visible, cache=kept, positions=positions)
    cache["lengths"] = cache["lengths"] + (tokens.shape[1] if counts is None else counts)
    return tap("logits", head(config, tree, x))


def cache_for(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    tokens: Int[Array, "batch total_length"],
    longest: int,
    source: Int[Array, "batch keys"] | None,
) -> Cache | None:
    """A cache for the tokens, if there can be one: what is cached must not depend on what comes later."""
    if not config.mask_is_exact or longest > config.max_length:
        return None
    return start(config, parameters, len(tokens), min(tokens.shape[1], config.max_length), source=source)


def next_logits(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    tokens: Int[Array, "batch total_length"],
    lengths: Int[Array, " batch"],
    cache: Cache | None,
    source: Int[Array, "batch keys"] | None,
    unseen: int,
) -> Inexact[Array, "batch vocab"]:
    """What follows the first `lengths` tokens of each row, of which the cache has not seen up to `unseen`. Without a
    cache the model sees the last `max_length` of them, from the beginning (document 001)."""
    rows = np.arange(len(tokens))
    if cache is not None:
        counts = lengths - cache["lengths"]
        chunk = np.take_along_axis(tokens, positions_behind(cache, unseen), axis=1)
        return step(config, parameters, chunk, cache, counts=counts)[rows, counts - 1]
    begin = np.maximum(lengths - config.max_length, 0)
    shown = begin[:, None] + np.arange(min(config.max_length, lengths.max()))
    context = np.take_along_axis(tokens, shown, axis=1)
    inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
    return transformer(config, parameters, **inputs)[rows, lengths - begin - 1]
