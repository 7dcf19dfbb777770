"""Decoding with a cache: logits of new tokens without recomputing the earlier tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from transparity.taps import Tap, identity, scoped
from transparity_pytorch.heads import HEADS
from transparity_pytorch.layers.sequential import Layer
from transparity_pytorch.masks import padding_mask, target_mask, visible_keys
from transparity_pytorch.mixers.attention import project_key_value
from transparity_pytorch.shapes import GeneratedIds, IsQuery, IsToken, Lengths, NextIds, NextLogits, QueryIds, SourceIds
from transparity_pytorch.state.cache import Cache, empty_cache, mark_valid, next_positions
from transparity_pytorch.state.context import Context, Mask
from transparity_pytorch.transformer import Transformer

Step = Callable[..., Tensor]
"""The function `step`, or a compiled version of it."""


def prefill(
    model: Transformer,
    batch: int,
    capacity: int,
    *,
    source: SourceIds | None = None,
    attention_mask: IsToken | SourceIds | None = None,
) -> Cache:
    """Return a cache for `batch` rows of up to `capacity` tokens.

    With a `source`, the encoder runs, and the cache has each decoder layer's keys and values for cross-attention.
    """
    config = model.config
    weight = next(model.parameters())
    cache = empty_cache(config, batch, capacity, weight.dtype, weight.device)
    if source is not None:
        is_token = visible_keys(source, config.pad_id, attention_mask, config.positions_of("source"))
        cache["memory_mask"] = padding_mask(is_token)
        positions = torch.arange(is_token.shape[1], device=is_token.device)[None]
        context = Context(Mask(cache["memory_mask"]), positions, is_token)
        memory = model.encoder(source, context)
        for layer, kept in zip(model.decoder.layers, cache["layers"], strict=True):
            assert isinstance(layer, Layer)
            read = layer.memory_norm(memory) if config.memory_norm else memory
            key, value = project_key_value(layer.cross_attention, read, context)
            kept["cross_attention"] = {"key": key, "value": value}
    return cache


def step(
    model: Transformer,
    tokens: QueryIds,
    cache: Cache,
    *,
    valid_lengths: Lengths | None = None,
    attention_mask: IsQuery | QueryIds | None = None,
    index: NextIds | None = None,
    tap: Tap = identity,
) -> Float[Tensor, "batch length vocab"]:
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
    config = model.config
    positions = next_positions(cache, tokens.shape[1])
    is_token = mark_valid(cache, visible_keys(tokens, config.pad_id, attention_mask), positions)
    context = Context(
        Mask(
            target_mask(positions, is_token, config.decoder_mask), "some" if config.decoder_mask == "causal" else None
        ),
        positions,
        is_token,
        valid_lengths=valid_lengths,
        memory_mask=Mask(cache["memory_mask"]) if "memory_mask" in cache else None,
        tap=scoped(tap, "decoder"),
        cache=cache,
    )
    x = model.decoder(tokens, context)
    cache["lengths"] += tokens.shape[1] if valid_lengths is None else valid_lengths
    x = x if index is None else x.take_along_dim(index[:, None, None], dim=1)
    return tap("logits", HEADS[config.head](config, model, x))


def cache_for(model: Transformer, tokens: GeneratedIds, longest: int, source: SourceIds | None) -> Cache | None:
    """Return a cache for `tokens`; None if `config.prefixes_agree` is false, or if a row has more than `max_length`
    tokens (`longest`)."""
    config = model.config
    if not config.prefixes_agree or longest > config.max_length:
        return None
    return prefill(model, len(tokens), min(tokens.shape[1], config.max_length), source=source)


def next_logits(
    model: Transformer,
    tokens: GeneratedIds,
    lengths: Lengths,
    cache: Cache | None,
    source: SourceIds | None,
    new: int,
    step: Step = step,
) -> NextLogits:
    """Return the logits after each row's first `lengths` tokens; all except the last `new` of these tokens are in the
    cache.

    Without a cache, the model runs on the last `max_length` tokens (document 001).
    """
    config = model.config
    if cache is not None:
        valid_lengths = lengths - cache["lengths"]
        chunk = tokens.take_along_dim(next_positions(cache, new), dim=1)
        return step(model, chunk, cache, valid_lengths=valid_lengths, index=valid_lengths - 1)[:, 0]
    rows = torch.arange(len(tokens), device=tokens.device)
    begin = (lengths - config.max_length).clamp(min=0)
    window = begin[:, None] + torch.arange(min(config.max_length, int(lengths.max())), device=tokens.device)
    context = tokens.take_along_dim(window, dim=1)
    inputs = {"tokens": context} if source is None else {"source": source, "target": context}
    return model(**inputs)[rows, lengths - begin - 1]
