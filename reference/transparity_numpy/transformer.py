"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.embeddings import Source, embed
from transparity_numpy.head import head, pool
from transparity_numpy.layers import layer, normalize
from transparity_numpy.masks import padding_mask, target_mask, visible_keys, visible_queries, window_mask
from transparity_numpy.normalization import norm
from transparity_numpy.positions import query_temperature, rotary_tables, score_bias
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext


def layer_context(config: TransformerConfig, context: LayerContext, dtype: DTypeLike) -> LayerContext:
    """The context of a stack as a layer with this `config` sees it: its window in the mask, and its tables."""
    mask = context.mask
    if config.sliding_window is not None:
        mask = mask & window_mask(context.positions, mask.shape[-1], config.sliding_window, config.window_kind)
    rotary = rotary_tables(config, context.positions, dtype)
    temperature = query_temperature(config, context.positions, dtype)
    return context._replace(mask=mask, rotary=rotary, temperature=temperature)


def stack(
    name: str,
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: list[Cache] | None = None,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Embedded tokens through the layers of an encoder or a decoder, and its norms; `cache` has one entry per layer."""
    x = tap("embedding", x)
    if config.embedding_norm:
        x = normalize(config, parameters, "embedding_norm", x, tap, training=context.training)
    contexts = {
        kind: layer_context(layer_config, context, x.real.dtype) for kind, layer_config in config.layer_kinds.items()
    }
    for i in range(len(parameters.get("layers", {}))):
        layer_config, given = config.for_layer(name, i), contexts[config.layer_kind(name, i)]
        kept, scope = cache[i] if cache else None, scoped(tap, f"layers.{i}")
        x = layer(layer_config, parameters["layers"][str(i)], x, given, scope, kept)
    if config.final_norm:
        x = norm(config, parameters["final_norm"], x, scoped(tap, "final_norm"), training=context.training)
    return tap("output", x)


def encoder(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Source,
    is_token: Bool[Array, "batch length"],
    tap: Tap = identity,
    *,
    token_types: Int[Array, "batch length"] | None = None,
    training: bool = False,
) -> Inexact[Array, "batch length embed_dim"]:
    """Encode `tokens`, or the patches of pixels or frames of audio, each of which sees all that are `is_token`."""
    positions, keys = np.arange(is_token.shape[1])[None], is_token.shape[1]
    x = embed(config.for_stack("encoder"), parameters, tokens, positions, is_token, token_types, tap)
    context = LayerContext(
        mask=padding_mask(is_token),
        positions=positions,
        bias=score_bias(config, parameters, positions, keys, x.real.dtype, both=True),
        training=training,
    )
    return stack("encoder", config, parameters, x, context, tap)


def decoder(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch queries"],
    is_token: Bool[Array, "batch keys"],
    tap: Tap = identity,
    *,
    positions: Int[Array, "batch queries"] | None = None,
    memory: Inexact[Array, "batch memory embed_dim"] | None = None,
    memory_mask: Bool[Array, "batch 1 1 memory"] | None = None,
    cache: list[Cache] | None = None,
    valid_lengths: Int[Array, " batch"] | None = None,
    training: bool = False,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Decode `tokens`, each of which sees itself and earlier tokens.

    Args:
        is_token: True for keys that are not padding: the tokens, or with a cache everything in it.
        positions: Positions of the tokens in a cache; None: 0, 1 …
        memory: The encoder's output; None without an encoder, or if its keys and values are cached.
        memory_mask: True where cross-attention may attend; None without an encoder.
        cache: One entry per layer, updated in place.
        valid_lengths: Number of tokens of each row that a `cache` goes on from; None: all.
    """
    positions, keys = np.arange(tokens.shape[1])[None] if positions is None else positions, is_token.shape[1]
    x = embed(config, parameters, tokens, positions, is_token)
    masked = config.is_recurrent and config.decoder_mask == "causal-and-padding"
    context = LayerContext(
        mask=target_mask(positions, is_token, config.decoder_mask),
        positions=positions,
        is_token=visible_queries(is_token, positions) if masked else None,
        valid_lengths=valid_lengths,
        bias=score_bias(config, parameters, positions, keys, x.real.dtype, both=False),
        memory=memory,
        memory_mask=memory_mask,
        training=training,
    )
    return stack("decoder", config, parameters, x, context, tap, cache)


def encoder_input(
    config: TransformerConfig,
    tokens: Int[Array, "batch length"] | None,
    pixels: Inexact[Array, "batch channels height width"] | None,
    attention_mask: Bool[Array, "batch length"] | Int[Array, "batch length"] | None,
) -> tuple[Any, Bool[Array, "batch length"]]:
    """What a lone encoder reads, and where it is visible: tokens, or pixels, of which all patches are."""
    if pixels is not None:
        return pixels, np.ones((len(pixels), config.max_length), bool)
    assert tokens is not None
    return tokens, visible_keys(tokens, config.pad_id, attention_mask)


def transformer(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    *,
    source: Int[Array, "batch keys"] | Inexact[Array, "batch mel_bins frames"] | None = None,
    target: Int[Array, "batch queries"] | None = None,
    tokens: Int[Array, "batch length"] | None = None,
    pixels: Inexact[Array, "batch channels height width"] | None = None,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
    token_types: Int[Array, "batch length"] | None = None,
    tap: Tap = identity,
    training: bool = False,
    out: Inexact[Array, "batch length vocab"] | Inexact[Array, "batch features"] | None = None,
) -> Inexact[Array, "batch length vocab"] | Inexact[Array, "batch length embed_dim"] | Inexact[Array, "batch features"]:
    """Logits of the next token (in the memory of `out`, if they can be), or the other output that `config.head` names.

    Args:
        parameters: By flat name; their dtype is that of the computation (complex128 for the complex step).
        source, target, tokens, pixels: Tokens (or frames) and tokens, those of a lone stack, or an encoder's images.
        attention_mask: 0 at padding of the source, or of `tokens`.
        tap: Called with every named activation; its result is used in place of the activation.
    """
    tree = nest(shared(config, parameters))
    if config.architecture == "encoder-decoder":
        assert source is not None and target is not None
        is_token, scope = visible_keys(source, config.pad_id, attention_mask), scoped(tap, "encoder")
        memory = encoder(config, tree["encoder"], source, is_token, scope, training=training)
        given: dict[str, Any] = {"memory": memory, "memory_mask": padding_mask(is_token), "training": training}
        is_token, scope = visible_keys(target, config.pad_id), scoped(tap, "decoder")
        x = decoder(config, tree["decoder"], target, is_token, scope, **given)
    elif config.architecture == "encoder":
        (read, is_token), scope = encoder_input(config, tokens, pixels, attention_mask), scoped(tap, "encoder")
        x = encoder(config, tree["encoder"], read, is_token, scope, token_types=token_types, training=training)
    else:
        assert tokens is not None
        is_token, scope = visible_keys(tokens, config.pad_id, attention_mask), scoped(tap, "decoder")
        x = decoder(config, tree["decoder"], tokens, is_token, scope, training=training)
    if config.is_pooled:
        x = tap("pooled", pool(config, x, is_token, tokens if target is None else target))
    return tap("logits", head(config, tree, x, out))
