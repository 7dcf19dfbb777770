"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.cache import Cache
from transparity_numpy.embeddings import embed
from transparity_numpy.functional import nest
from transparity_numpy.head import head
from transparity_numpy.layers import decoder_layer, encoder_layer
from transparity_numpy.masks import padding_mask, target_mask
from transparity_numpy.normalization import norm
from transparity_numpy.positions import places, window_mask


def encoder(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch length"],
    mask: Bool[Array, "batch 1 1 length"],
    tap: Tap = identity,
    *,
    token_types: Int[Array, "batch length"] | None = None,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """The embedded tokens through every encoder layer."""
    x = tap("embedding", embed(config, parameters, tokens, mask[:, 0, 0], token_types=token_types))
    if config.embedding_norm:
        x = norm(config, parameters["embedding_norm"], x, scoped(tap, "embedding_norm"), training=training)
        x = tap("embedding_norm", x)
    positions = np.arange(tokens.shape[1])[None]
    at = places(config, parameters, positions, tokens.shape[1], x.real.dtype, both=True)
    for i in range(config.num_encoder_layers):
        layer, window = parameters["layers"][str(i)], config.layer_window(i)
        seen = mask if window is None else mask & window_mask(positions, tokens.shape[1], window)
        x = encoder_layer(config, layer, x, seen, scoped(tap, f"layers.{i}"), at=at, training=training)
    if config.final_norm:
        x = norm(config, parameters["final_norm"], x, scoped(tap, "final_norm"), training=training)
    return tap("output", x)


def decoder(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch queries"],
    mask: Bool[Array, "#batch 1 queries keys"],
    memory: Inexact[Array, "batch memory embed_dim"] | None = None,
    memory_mask: Bool[Array, "batch 1 1 memory"] | None = None,
    tap: Tap = identity,
    *,
    visible: Bool[Array, "batch keys"],
    cache: list[Cache] | None = None,
    positions: Int[Array, "batch queries"] | None = None,
    training: bool = False,
) -> Inexact[Array, "batch queries embed_dim"]:
    """The embedded tokens through every decoder layer, each looking at `memory` if there is one; positions may count
    what is `visible` alone.

    With a `cache`, one for each layer, `tokens` stand at `positions`, behind those in it.
    """
    x = tap("embedding", embed(config, parameters, tokens, visible, positions))
    if config.embedding_norm:
        x = norm(config, parameters["embedding_norm"], x, scoped(tap, "embedding_norm"), training=training)
        x = tap("embedding_norm", x)
    standing = np.arange(tokens.shape[1])[None] if positions is None else positions
    at = places(config, parameters, standing, visible.shape[1], x.real.dtype, both=False)
    for i in range(config.num_decoder_layers):
        layer, scope, kept = parameters["layers"][str(i)], scoped(tap, f"layers.{i}"), cache[i] if cache else None
        window = config.layer_window(i)
        seen = mask if window is None else mask & window_mask(standing, visible.shape[1], window)
        beside = (memory, memory_mask, scope)
        x = decoder_layer(config, layer, x, seen, *beside, cache=kept, positions=positions, at=at, training=training)
    if config.final_norm:
        x = norm(config, parameters["final_norm"], x, scoped(tap, "final_norm"), training=training)
    return tap("output", x)


def transformer(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    *,
    source: Int[Array, "batch keys"] | None = None,
    target: Int[Array, "batch queries"] | None = None,
    tokens: Int[Array, "batch length"] | None = None,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
    token_types: Int[Array, "batch length"] | None = None,
    tap: Tap = identity,
    training: bool = False,
) -> (
    Inexact[Array, "batch length vocab"] | Inexact[Array, "batch length embed_dim"] | Inexact[Array, "batch embed_dim"]
):
    """The logits of the next token: of `target` given `source`, or of `tokens` for a lone stack; or what else
    `config.head` names. An `attention_mask` is of the source, or of the tokens.

    `parameters` go by their flat names and give the dtype: float64 is the oracle, complex128 the complex step.
    """
    tree = nest(shared(config, parameters))
    if config.architecture == "encoder-decoder":
        assert source is not None and target is not None
        source_mask = padding_mask(source, config.pad_id, attention_mask)
        memory = encoder(config, tree["encoder"], source, source_mask, scoped(tap, "encoder"), training=training)
        mask = target_mask(target, config.pad_id, config.decoder_mask)
        visible, scope = padding_mask(target, config.pad_id)[:, 0, 0], scoped(tap, "decoder")
        beside = (memory, source_mask, scope)
        x = decoder(config, tree["decoder"], target, mask, *beside, visible=visible, training=training)
    elif config.architecture == "encoder":
        assert tokens is not None
        mask, scope = padding_mask(tokens, config.pad_id, attention_mask), scoped(tap, "encoder")
        x = encoder(config, tree["encoder"], tokens, mask, scope, token_types=token_types, training=training)
    else:
        assert tokens is not None
        mask = target_mask(tokens, config.pad_id, config.decoder_mask, attention_mask)
        visible, scope = padding_mask(tokens, config.pad_id, attention_mask)[:, 0, 0], scoped(tap, "decoder")
        x = decoder(config, tree["decoder"], tokens, mask, tap=scope, visible=visible, training=training)
    return tap("logits", head(config, tree, x))
