"""The model: an encoder, a decoder, or both, with a head."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import head, pool
from transparity_numpy.inputs.embedding import Source, embed
from transparity_numpy.layers import LAYERS, normalize
from transparity_numpy.masks import padding_mask, target_mask, visible_keys, visible_queries, window_mask
from transparity_numpy.norms import norm
from transparity_numpy.positions.bias import query_temperature, score_bias
from transparity_numpy.rotary import rotary_tables
from transparity_numpy.shapes import Frames, Hidden, IsToken, Lengths, Memory, Parameters, Pixels, SourceIds, TokenIds
from transparity_numpy.state.cache import Cache
from transparity_numpy.state.context import LayerContext


def layer_context(config: TransformerConfig, context: LayerContext, dtype: DTypeLike) -> LayerContext:
    """Return the context for a layer with this `config`, with the layer's window in the mask and its rotary tables."""
    mask = context.mask
    if config.sliding_window is not None:
        mask = mask & window_mask(context.positions, mask.shape[-1], config.sliding_window, config.window_kind)
    rotary = rotary_tables(config, context.positions, dtype) if config.positions == "rotary" else None
    temperature = query_temperature(config, context.positions, dtype) if config.query_temperature else None
    return context._replace(mask=mask, rotary=rotary, temperature=temperature)


def stack(
    name: str,
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    context: LayerContext,
    cache: list[Cache] | None = None,
) -> Hidden:
    """The layers and norms of an encoder or a decoder, applied to `x`; `cache` has one entry per layer."""
    tap, layers = context.tap, parameters.get("layers", {})
    x = tap("embedding", x)
    if config.embedding_norm:
        x = normalize(config, parameters, "embedding_norm", x, context)
    contexts = {
        kind: layer_context(layer_config, context, x.real.dtype) for kind, layer_config in config.layer_kinds.items()
    }
    for i in range(len(layers)):
        layer_config, given = config.for_layer(name, i), contexts[config.layer_kind(name, i)]
        given = given._replace(tap=scoped(tap, f"layers.{i}"), cache=cache[i] if cache else None)
        x = LAYERS[layer_config.branches](layer_config, layers[str(i)], x, given)
    if config.final_norm:
        x = norm(config, parameters["final_norm"], x, scoped(tap, "final_norm"), training=context.training)
    return tap("output", x)


def encoder(
    config: TransformerConfig,
    parameters: Parameters,
    tokens: Source,
    is_token: IsToken,
    tap: Tap = identity,
    *,
    token_types: TokenIds | None = None,
    training: bool = False,
) -> Hidden:
    """The encoder of tokens, patches or frames of audio; each position sees all positions that are not padding."""
    positions, keys = np.arange(is_token.shape[1])[None], is_token.shape[1]
    x = embed("encoder", config, parameters, tokens, positions, is_token, token_types, tap)
    near = positions, keys, x.real.dtype
    context = LayerContext(
        mask=padding_mask(is_token),
        positions=positions,
        bias=score_bias(config, parameters, *near, both=True) if config.has_score_bias else None,
        training=training,
        tap=tap,
    )
    return stack("encoder", config, parameters, x, context)


def decoder(
    config: TransformerConfig,
    parameters: Parameters,
    tokens: TokenIds,
    is_token: IsToken,
    tap: Tap = identity,
    *,
    positions: TokenIds | None = None,
    memory: Memory | None = None,
    memory_mask: Bool[Array, "batch 1 1 memory"] | None = None,
    cache: list[Cache] | None = None,
    valid_lengths: Lengths | None = None,
    training: bool = False,
) -> Hidden:
    """The decoder, in which each token sees itself and earlier tokens.

    Args:
        is_token: True for keys that are not padding. With a cache, these are all positions of the cache.
        positions: The positions of the tokens, if there is a cache. None means 0, 1 …
        memory: The encoder's output; None without an encoder, or if its keys and values are cached.
        memory_mask: True where cross-attention may attend; None without an encoder.
        cache: One entry per layer, updated in place.
        valid_lengths: With a `cache`, the number of tokens of each row that are not fillers. None means all.
    """
    positions, keys = np.arange(tokens.shape[1])[None] if positions is None else positions, is_token.shape[1]
    x = embed("decoder", config, parameters, tokens, positions, is_token)
    near = positions, keys, x.real.dtype
    masked = config.is_recurrent and config.decoder_mask == "causal-and-padding"
    context = LayerContext(
        mask=target_mask(positions, is_token, config.decoder_mask),
        positions=positions,
        is_token=visible_queries(is_token, positions) if masked else None,
        valid_lengths=valid_lengths,
        bias=score_bias(config, parameters, *near, both=False) if config.has_score_bias else None,
        memory=memory,
        memory_mask=memory_mask,
        training=training,
        tap=tap,
    )
    return stack("decoder", config, parameters, x, context, cache)


def encoder_input(
    config: TransformerConfig,
    tokens: TokenIds | None,
    pixels: Pixels | None,
    attention_mask: IsToken | SourceIds | None,
) -> tuple[Any, IsToken]:
    """Return the input of an encoder-only model, and True where it is not padding; images have no padding."""
    if pixels is not None:
        return pixels, np.ones((len(pixels), config.max_length), bool)
    assert tokens is not None
    return tokens, visible_keys(tokens, config.pad_id, attention_mask)


def transformer(
    config: TransformerConfig,
    parameters: Parameters,
    *,
    source: SourceIds | Frames | None = None,
    target: TokenIds | None = None,
    tokens: TokenIds | None = None,
    pixels: Pixels | None = None,
    attention_mask: IsToken | SourceIds | None = None,
    token_types: TokenIds | None = None,
    tap: Tap = identity,
    training: bool = False,
) -> Inexact[Array, "batch length vocab"] | Hidden | Inexact[Array, "batch features"]:
    """The whole model: the logits of each next token, or the other output that `config.head` names.

    Args:
        parameters: Arrays by flat name. Their dtype is the dtype of the computation, complex128 for the complex step.
        source, target: The inputs of an encoder-decoder: tokens; the source may also be frames of audio.
        tokens, pixels: The input of a model with one stack: tokens, or images for an encoder.
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.
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
    return tap("logits", head(config, tree, x))
