"""The model: an encoder, a decoder, or both, with a head."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.inputs import inputs_by_name
from transparity.parameters import shared
from transparity.taps import Tap, identity, scoped
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import HEADS
from transparity_numpy.heads.pooled import pool
from transparity_numpy.inputs.embedding import embed
from transparity_numpy.layers import LAYERS
from transparity_numpy.layers.sequential import normalize
from transparity_numpy.masks import padding_mask, target_mask, visible_keys
from transparity_numpy.norms.norm import norm
from transparity_numpy.positions.in_attention import contexts_by_kind
from transparity_numpy.shapes import Hidden, Input, IsToken, Parameters, Source, SourceIds, TokenIds
from transparity_numpy.state.context import Context


def stack(name: str, config: TransformerConfig, parameters: Parameters, tokens: Source, context: Context) -> Hidden:
    """The embedding, layers and norms of the `encoder` or the `decoder`."""
    tap = context.tap
    x = tap("embedding", embed(name, config, parameters, tokens, context))
    if config.embedding_norm:
        x = normalize(config, parameters, "embedding_norm", x, context)
    attends_by_position = config.attends_by_position
    contexts = contexts_by_kind(name, config, parameters, context, x.real.dtype) if attends_by_position else {}
    for i in range(config.stack_num_layers(name)):
        layer_config, cache = config.for_layer(name, i), context.cache and context.cache["layers"][i]
        given = contexts.get(config.layer_kind(name, i), context)._replace(tap=scoped(tap, f"layers.{i}"), cache=cache)
        x = LAYERS[layer_config.branches](layer_config, parameters["layers"][str(i)], x, given)
    if config.final_norm:
        x = norm(config, parameters["final_norm"], x, scoped(tap, "final_norm"), training=context.training)
    return tap("output", x)


def transformer(
    config: TransformerConfig,
    parameters: Parameters,
    *,
    attention_mask: IsToken | SourceIds | None = None,
    token_types: TokenIds | None = None,
    tap: Tap = identity,
    training: bool = False,
    **inputs: Input,
) -> Inexact[Array, "batch length vocab"] | Hidden | Inexact[Array, "batch features"]:
    """The whole model, with the output that `config.head` names, such as the logits of each next token.

    Args:
        parameters: Arrays by flat name. Their dtype is the dtype of the computation, complex128 for the complex step.
        inputs: The main inputs by name, such as `source` and `target` (`config.input_names`).
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.
    """
    tree = nest(shared(config, parameters))
    inputs = inputs_by_name(config, (), inputs)
    encoded: dict[str, Any] = {}
    for name, read in zip(config.stacks, config.input_names, strict=True):
        is_token = visible_keys(inputs[read], config.pad_id, attention_mask, config.positions_of(read))
        positions, padding, scope = np.arange(is_token.shape[1])[None], padding_mask(is_token), scoped(tap, name)
        mask = padding if name == "encoder" else target_mask(positions, is_token, config.decoder_mask)
        context = Context(mask, positions, is_token, token_types, tap=scope, training=training, **encoded)
        x = stack(name, config, tree[name], inputs[read], context)
        encoded, attention_mask = {"memory": x, "memory_mask": padding}, None
    if config.is_pooled:
        x = tap("pooled", pool(config, x, is_token, inputs.get("tokens")))
    return tap("logits", HEADS[config.head](config, tree, x))
