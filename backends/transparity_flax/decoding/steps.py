"""Decoding with a cache: logits of new tokens without recomputing the earlier tokens."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.taps import Tap, identity, scoped
from transparity_flax.fast.structure import ModelStructure, SplitModel, Weights
from transparity_flax.heads import HEADS
from transparity_flax.masks import padding_mask, target_mask, visible_keys
from transparity_flax.mixers.attention import project_key_value
from transparity_flax.shapes import GeneratedIds, IsQuery, IsToken, Lengths, NextIds, NextLogits, QueryIds, SourceIds
from transparity_flax.state.cache import Cache, empty_cache, mark_valid, next_positions
from transparity_flax.state.context import Context, Mask
from transparity_flax.transformer import Transformer


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
    cache = empty_cache(config, batch, capacity, jax.tree.leaves(nnx.state(model, nnx.Param))[0].dtype)
    if source is not None:
        is_token = visible_keys(source, config.pad_id, attention_mask, config.positions_of("source"))
        cache["memory_mask"] = padding_mask(is_token)
        positions = jnp.arange(is_token.shape[1])[None]
        context = Context(Mask(cache["memory_mask"]), positions, is_token)
        memory = model.encoder(source, context, model.reader("encoder"))
        for layer, kept in zip(model.decoder.layers, cache["layers"], strict=True):
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
) -> Float[Array, "batch length vocab"]:
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
    x = model.decoder(tokens, context, model.reader("decoder"))
    cache["lengths"] = cache["lengths"] + (tokens.shape[1] if valid_lengths is None else valid_lengths)
    x = x if index is None else jnp.take_along_axis(x, index[:, None, None], axis=1)
    return tap("logits", HEADS[config.head](config, model, x))


def cache_for(split: SplitModel, tokens: GeneratedIds, longest: int, source: SourceIds | None) -> Cache | None:
    """Return a cache for `tokens`; None if `config.prefixes_agree` is false, or if a row has more than `max_length`
    tokens (`longest`)."""
    config, structure, weights = split
    if not config.prefixes_agree or longest > config.max_length:
        return None
    return compiled_prefill(structure, weights, len(tokens), min(tokens.shape[1], config.max_length), source)


def next_logits(
    split: SplitModel, tokens: GeneratedIds, lengths: Lengths, cache: Cache | None, source: SourceIds | None, new: int
) -> NextLogits:
    """Return the logits after each row's first `lengths` tokens; all except the last `new` of these tokens are in the
    cache.

    Without a cache, the model runs on the last `max_length` tokens (document 001).
    """
    config, structure, weights = split
    if cache is not None:
        logits, held = _next_with(structure, weights, tokens, lengths, cache, new)
        cache.update(held)
        return logits
    # With a constant width, one compiled program serves every step. The fillers are later tokens, so the mask hides
    # them. If masked keys keep a weight (preset walkthrough), or angles depend on the length, each length needs its own
    # program.
    most = tokens.shape[1] if config.prefixes_agree else int(lengths.max())
    return _next_without(structure, weights, tokens, lengths, source, min(config.max_length, most))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def compiled_prefill(
    structure: ModelStructure,
    weights: Weights,
    batch: int,
    capacity: int,
    source: SourceIds | None,
    attention_mask: IsToken | SourceIds | None = None,
) -> Cache:
    return prefill(structure.model(weights), batch, capacity, source=source, attention_mask=attention_mask)


# The old cache is donated, so that the new cache can use its memory.
@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=4)
def _next_with(
    structure: ModelStructure, weights: Weights, tokens: GeneratedIds, lengths: Lengths, cache: Cache, new: int
) -> tuple[NextLogits, Cache]:
    valid_lengths = lengths - cache["lengths"]
    chunk = jnp.take_along_axis(tokens, next_positions(cache, new), axis=1)
    logits = step(structure.model(weights), chunk, cache, valid_lengths=valid_lengths, index=valid_lengths - 1)[:, 0]
    return logits, cache


@functools.partial(jax.jit, static_argnums=(0, 5))
def _next_without(
    structure: ModelStructure,
    weights: Weights,
    tokens: GeneratedIds,
    lengths: Lengths,
    source: SourceIds | None,
    width: int,
) -> NextLogits:
    begin = jnp.maximum(lengths - width, 0)
    context = jnp.take_along_axis(tokens, begin[:, None] + jnp.arange(width), axis=1)
    inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
    return structure.model(weights)(**inputs)[jnp.arange(len(tokens)), lengths - begin - 1]
