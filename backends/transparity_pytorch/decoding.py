"""Decoding with a cache: the logits of the tokens that come next, without computing again what came before."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transparity.taps import Tap, identity, scoped
from transparity_pytorch.cache import Cache, empty_cache, positions_behind, show
from transparity_pytorch.head import head
from transparity_pytorch.layers import DecoderLayer, memory_keys_and_values
from transparity_pytorch.masks import cached_mask, padding_mask
from transparity_pytorch.transformer import Transformer

Step = Callable[..., Tensor]
"""`step` below, or what it was compiled to."""


def start(
    model: Transformer,
    batch: int,
    capacity: int,
    *,
    source: Int[Tensor, "batch keys"] | None = None,
    attention_mask: Bool[Tensor, "batch keys"] | Int[Tensor, "batch keys"] | None = None,
) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens. The encoder runs here, and every decoder layer's keys and
    values of what it says are computed here, once. An `attention_mask` is of the source."""
    config = model.config
    table = model.token_embedding.weight
    cache = empty_cache(config, batch, capacity, table.dtype, table.device)
    if source is not None:
        cache["memory_mask"] = padding_mask(source, config.pad_id, attention_mask)
        memory = model.encoder(source, cache["memory_mask"])
        for layer, kept in zip(model.decoder.layers, cache["layers"], strict=True):
            assert isinstance(layer, DecoderLayer)
            kept["cross_attention"] = memory_keys_and_values(layer, memory)
    return cache


def step(
    model: Transformer,
    tokens: Int[Tensor, "batch queries"],
    cache: Cache,
    *,
    counts: Int[Tensor, " batch"] | None = None,
    attention_mask: Bool[Tensor, "batch queries"] | Int[Tensor, "batch queries"] | None = None,
    tap: Tap = identity,
) -> Float[Tensor, "batch queries vocab"]:
    """The logits behind each of the next `tokens`, as the full forward pass would have them; `cache` goes on by them.
    Padding that sees nothing weighs all keys alike: its own logits depend on the room there is.

    Of each row the first `counts` tokens count, all without it; what follows fills the row up, is never seen by what
    counts, and is written over by the next step. An `attention_mask` is of the tokens.
    """
    config = model.config
    positions = positions_behind(cache, tokens.shape[1])
    visible = show(cache, padding_mask(tokens, config.pad_id, attention_mask)[:, 0, 0], positions)
    hides_padding = config.decoder_mask == "causal-and-padding"
    mask = cached_mask(positions, visible if hides_padding else torch.ones_like(visible))
    memory_mask, scope, kept = cache.get("memory_mask"), scoped(tap, "decoder"), cache["layers"]
    beside, table = (None, memory_mask, scope), model.token_embedding
    x = model.decoder(tokens, mask, *beside, visible=visible, token_embedding=table, cache=kept, positions=positions)
    cache["lengths"] = cache["lengths"] + (tokens.shape[1] if counts is None else counts)
    return tap("logits", head(model, x))


def cache_for(
    model: Transformer,
    tokens: Int[Tensor, "batch total_length"],
    longest: int,
    source: Int[Tensor, "batch keys"] | None,
) -> Cache | None:
    """A cache for the tokens, if there can be one: what is cached must not depend on what comes later."""
    config = model.config
    if not config.mask_is_exact or longest > config.max_length:
        return None
    return start(model, len(tokens), min(tokens.shape[1], config.max_length), source=source)


def next_logits(
    model: Transformer,
    tokens: Int[Tensor, "batch total_length"],
    lengths: Int[Tensor, " batch"],
    cache: Cache | None,
    source: Int[Tensor, "batch keys"] | None,
    unseen: int,
    step: Step = step,
) -> Float[Tensor, "batch vocab"]:
    """What follows the first `lengths` tokens of each row, of which the cache has not seen up to `unseen`. Without a
    cache the model sees the last `max_length` of them, from the beginning (document 001)."""
    config = model.config
    rows = torch.arange(len(tokens), device=tokens.device)
    if cache is not None:
        counts = lengths - cache["lengths"]
        chunk = tokens.take_along_dim(positions_behind(cache, unseen), dim=1)
        return step(model, chunk, cache, counts=counts)[rows, counts - 1]
    begin = (lengths - config.max_length).clamp(min=0)
    shown = begin[:, None] + torch.arange(min(config.max_length, int(lengths.max())), device=tokens.device)
    context = tokens.take_along_dim(shown, dim=1)
    inputs = {"tokens": context} if source is None else {"source": source, "target": context}
    return model(**inputs)[rows, lengths - begin - 1]
