"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.cache import Cache
from transparity.config import TransformerConfig
from transparity.embeddings import embed
from transparity.functional import linear, nest
from transparity.layers import decoder_layer, encoder_layer
from transparity.masks import padding_mask, target_mask
from transparity.normalization import norm
from transparity.taps import Tap, identity, scoped


def encoder(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch length"],
    mask: Bool[Array, "batch 1 1 length"],
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """The embedded tokens through every encoder layer."""
    x = tap("embedding", embed(config, parameters, tokens))
    for i in range(config.num_encoder_layers):
        layer = parameters["layers"][str(i)]
        x = encoder_layer(config, layer, x, mask, scoped(tap, f"layers.{i}"), training=training)
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
    cache: list[Cache] | None = None,
    positions: Int[Array, "batch queries"] | None = None,
    training: bool = False,
) -> Inexact[Array, "batch queries embed_dim"]:
    """The embedded tokens through every decoder layer, each looking at `memory` if there is one.

    With a `cache`, one for each layer, `tokens` stand at `positions`, behind those in it.
    """
    x = tap("embedding", embed(config, parameters, tokens, positions))
    for i in range(config.num_decoder_layers):
        layer, scope, kept = parameters["layers"][str(i)], scoped(tap, f"layers.{i}"), cache[i] if cache else None
        x = decoder_layer(
            config, layer, x, mask, memory, memory_mask, scope, cache=kept, positions=positions, training=training
        )
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
    tap: Tap = identity,
    training: bool = False,
) -> Inexact[Array, "batch length vocab"]:
    """The logits of the next token: of `target` given `source`, or of `tokens` for a lone stack.

    `parameters` go by their flat names and give the dtype: float64 is the oracle, complex128 the complex step.
    """
    tree = nest(parameters)
    if config.architecture == "encoder-decoder":
        assert source is not None and target is not None
        source_mask = padding_mask(source, config.pad_id)
        memory = encoder(config, tree["encoder"], source, source_mask, scoped(tap, "encoder"), training=training)
        mask = target_mask(target, config.pad_id, config.target_mask)
        x = decoder(
            config, tree["decoder"], target, mask, memory, source_mask, scoped(tap, "decoder"), training=training
        )
    elif config.architecture == "encoder":
        assert tokens is not None
        mask = padding_mask(tokens, config.pad_id)
        x = encoder(config, tree["encoder"], tokens, mask, scoped(tap, "encoder"), training=training)
    else:
        assert tokens is not None
        mask = target_mask(tokens, config.pad_id, config.target_mask)
        x = decoder(config, tree["decoder"], tokens, mask, tap=scoped(tap, "decoder"), training=training)
    return tap("logits", linear(tree["head"], x))
