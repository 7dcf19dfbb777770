"""Decoding with a cache: logits of new tokens without recomputing the earlier tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import HEADS
from transparity_numpy.masks import padding_mask, target_mask, visible_keys
from transparity_numpy.mixers.attention import project_key_value
from transparity_numpy.norms.norm import norm
from transparity_numpy.shapes import (
    GeneratedIds,
    IsQuery,
    IsToken,
    Lengths,
    NextIds,
    NextLogits,
    Parameters,
    QueryIds,
    SourceIds,
)
from transparity_numpy.state.cache import Cache, empty_cache, mark_valid, next_positions
from transparity_numpy.state.context import Context
from transparity_numpy.transformer import stack, transformer


def prefill(
    config: TransformerConfig,
    parameters: Parameters,
    batch: int,
    capacity: int,
    *,
    source: SourceIds | None = None,
    attention_mask: IsToken | SourceIds | None = None,
) -> Cache:
    """Return a cache for `batch` rows of up to `capacity` tokens.

    With a `source`, the encoder runs, and the cache has each decoder layer's keys and values for cross-attention.
    """
    tree = nest(shared(config, parameters))
    cache = empty_cache(config, batch, capacity, next(iter(parameters.values())).dtype)
    if source is not None:
        is_token = visible_keys(source, config.pad_id, attention_mask, config.positions_of("source"))
        cache["memory_mask"] = padding_mask(is_token)
        context = Context(cache["memory_mask"], np.arange(is_token.shape[1])[None], is_token)
        memory = stack("encoder", config, tree["encoder"], source, context)
        for i in range(config.num_decoder_layers):
            layer = tree["decoder"]["layers"][str(i)]
            read = norm(config, layer["memory_norm"], memory) if config.memory_norm else memory
            key, value = project_key_value(config, layer["cross_attention"], read, context)
            cache["layers"][i]["cross_attention"] = {"key": key, "value": value}
    return cache


def step(
    config: TransformerConfig,
    parameters: Parameters,
    tokens: QueryIds,
    cache: Cache,
    *,
    valid_lengths: Lengths | None = None,
    attention_mask: IsQuery | QueryIds | None = None,
    index: NextIds | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch length vocab"]:
    """Return the logits after each of the next `tokens`, and update `cache`. The logits equal the logits of a full
    forward pass.

    At a padding position, the mask may hide every key. All keys of the cache then have equal weights, and the logits at
    this position depend on the capacity of the cache.

    Args:
        valid_lengths: Number of valid tokens in each row. None means all. The other tokens are fillers: no token
            attends to them, and the next step overwrites them.
        attention_mask: Zero where `tokens` has padding.
        index: The index of one token in each row of `tokens`; only its logits are computed. None means all tokens.
    """
    tree = nest(shared(config, parameters))
    positions = next_positions(cache, tokens.shape[1])
    is_token = mark_valid(cache, visible_keys(tokens, config.pad_id, attention_mask), positions)
    context = Context(
        target_mask(positions, is_token, config.decoder_mask),
        positions,
        is_token,
        valid_lengths=valid_lengths,
        memory_mask=cache.get("memory_mask"),
        tap=scoped(tap, "decoder"),
        cache=cache,
    )
    x = stack("decoder", config, tree["decoder"], tokens, context)
    cache["lengths"] = cache["lengths"] + (tokens.shape[1] if valid_lengths is None else valid_lengths)
    x = x if index is None else np.take_along_axis(x, index[:, None, None], axis=1)
    return tap("logits", HEADS[config.head](config, tree, x))


def cache_for(
    config: TransformerConfig, parameters: Parameters, tokens: GeneratedIds, longest: int, source: SourceIds | None
) -> Cache | None:
    """Return a cache for `tokens`; None if `config.prefixes_agree` is false, or if a row has more than `max_length`
    tokens (`longest`)."""
    if not config.prefixes_agree or longest > config.max_length:
        return None
    return prefill(config, parameters, len(tokens), min(tokens.shape[1], config.max_length), source=source)


def next_logits(
    config: TransformerConfig,
    parameters: Parameters,
    tokens: GeneratedIds,
    lengths: Lengths,
    cache: Cache | None,
    source: SourceIds | None,
    new: int,
) -> NextLogits:
    """Return the logits after each row's first `lengths` tokens; all except the last `new` of these tokens are in the
    cache.

    Without a cache, the model runs on the last `max_length` tokens (document 001).
    """
    if cache is not None:
        valid_lengths = lengths - cache["lengths"]
        chunk = np.take_along_axis(tokens, next_positions(cache, new), axis=1)
        return step(config, parameters, chunk, cache, valid_lengths=valid_lengths, index=valid_lengths - 1)[:, 0]
    rows = np.arange(len(tokens))
    begin = np.maximum(lengths - config.max_length, 0)
    window = begin[:, None] + np.arange(min(config.max_length, lengths.max()))
    context = np.take_along_axis(tokens, window, axis=1)
    inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
    return transformer(config, parameters, **inputs)[rows, lengths - begin - 1]
