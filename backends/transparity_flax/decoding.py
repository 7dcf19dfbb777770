"""Decoding with a cache: the logits of the tokens that come next, without computing again what came before."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.taps import Tap, identity, scoped
from transparity_flax.cache import Cache, empty_cache, positions_behind, show
from transparity_flax.head import head
from transparity_flax.layers import memory_keys_and_values
from transparity_flax.masks import cached_mask, padding_mask
from transparity_flax.packing import Form, Split
from transparity_flax.parameters import State
from transparity_flax.transformer import Transformer


def start(
    model: Transformer,
    batch: int,
    capacity: int,
    *,
    source: Int[Array, "batch keys"] | None = None,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
) -> Cache:
    """A cache for `batch` rows of up to `capacity` tokens. The encoder runs here, and every decoder layer's keys and
    values of what it says are computed here, once. An `attention_mask` is of the source."""
    config = model.config
    cache = empty_cache(config, batch, capacity, model.token_embedding.embedding.dtype)
    if source is not None:
        cache["memory_mask"] = padding_mask(source, config.pad_id, attention_mask)
        memory = model.encoder(source, cache["memory_mask"])
        for layer, kept in zip(model.decoder.layers, cache["layers"], strict=True):
            kept["cross_attention"] = memory_keys_and_values(layer, memory)
    return cache


def step(
    model: Transformer,
    tokens: Int[Array, "batch queries"],
    cache: Cache,
    *,
    counts: Int[Array, " batch"] | None = None,
    attention_mask: Bool[Array, "batch queries"] | Int[Array, "batch queries"] | None = None,
    tap: Tap = identity,
) -> Float[Array, "batch queries vocab"]:
    """The logits behind each of the next `tokens`, as the full forward pass would have them; `cache` goes on by them.
    Padding that sees nothing weighs all keys alike: its own logits depend on the room there is.

    Of each row the first `counts` tokens count, all without it; what follows fills the row up, is never seen by what
    counts, and is written over by the next step. An `attention_mask` is of the tokens.
    """
    config = model.config
    positions = positions_behind(cache, tokens.shape[1])
    visible = show(cache, padding_mask(tokens, config.pad_id, attention_mask)[:, 0, 0], positions)
    hides_padding = config.decoder_mask == "causal-and-padding"
    mask = cached_mask(positions, visible if hides_padding else jnp.ones_like(visible))
    memory_mask, scope, kept = cache.get("memory_mask"), scoped(tap, "decoder"), cache["layers"]
    beside, table = (None, memory_mask, scope), model.token_embedding
    x = model.decoder(tokens, mask, *beside, visible=visible, token_embedding=table, cache=kept, positions=positions)
    cache["lengths"] = cache["lengths"] + (tokens.shape[1] if counts is None else counts)
    return tap("logits", head(model, x))


def cache_for(
    split: Split,
    tokens: Int[Array, "batch total_length"],
    longest: int,
    source: Int[Array, "batch keys"] | None,
) -> Cache | None:
    """A cache for the tokens, if there can be one: what is cached must not depend on what comes later."""
    config, form, state = split
    if not config.mask_is_exact or longest > config.max_length:
        return None
    return _start(form, state, len(tokens), min(tokens.shape[1], config.max_length), source)


def next_logits(
    split: Split,
    tokens: Int[Array, "batch total_length"],
    lengths: Int[Array, " batch"],
    cache: Cache | None,
    source: Int[Array, "batch keys"] | None,
    unseen: int,
) -> Float[Array, "batch vocab"]:
    """What follows the first `lengths` tokens of each row, of which the cache has not seen up to `unseen`. Without a
    cache the model sees the last `max_length` of them, from the beginning (document 001)."""
    config, form, state = split
    if cache is not None:
        logits, held = _next_with(form, state, tokens, lengths, cache, unseen)
        cache.update(held)
        return logits
    # A width that does not change lets one program serve every step: what is not yet written is shown, too, and not
    # seen, for it lies in the future. A mask that hides nothing (walkthrough's) needs a program for each length.
    most = tokens.shape[1] if config.mask_is_exact else int(lengths.max())
    return _next_without(form, state, tokens, lengths, source, min(config.max_length, most))


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _start(form: Form, state: State, batch: int, capacity: int, source: Int[Array, "batch keys"] | None) -> Cache:
    return start(form.model(state), batch, capacity, source=source)


# The cache that is given is used up: the new one takes its place in memory.
@functools.partial(jax.jit, static_argnums=(0, 5), donate_argnums=4)
def _next_with(
    form: Form,
    state: State,
    tokens: Int[Array, "batch total_length"],
    lengths: Int[Array, " batch"],
    cache: Cache,
    unseen: int,
) -> tuple[Float[Array, "batch vocab"], Cache]:
    counts = lengths - cache["lengths"]
    chunk = jnp.take_along_axis(tokens, positions_behind(cache, unseen), axis=1)
    logits = step(form.model(state), chunk, cache, counts=counts)[jnp.arange(len(tokens)), counts - 1]
    return logits, cache


@functools.partial(jax.jit, static_argnums=(0, 5))
def _next_without(
    form: Form,
    state: State,
    tokens: Int[Array, "batch total_length"],
    lengths: Int[Array, " batch"],
    source: Int[Array, "batch keys"] | None,
    width: int,
) -> Float[Array, "batch vocab"]:
    begin = jnp.maximum(lengths - width, 0)
    context = jnp.take_along_axis(tokens, begin[:, None] + jnp.arange(width), axis=1)
    inputs: dict[str, Any] = {"tokens": context} if source is None else {"source": source, "target": context}
    return form.model(state)(**inputs)[jnp.arange(len(tokens)), lengths - begin - 1]
