"""The model: an encoder, a decoder, or both, with a head."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.inputs import inputs_by_name
from transparity.taps import Tap, chained, identity, scoped
from transparity_flax.arithmetic.changes import dropped
from transparity_flax.heads import HEADS
from transparity_flax.heads.pooled import pool
from transparity_flax.inputs import INPUTS
from transparity_flax.inputs.embedding import embed
from transparity_flax.layers import LAYERS
from transparity_flax.layers.sequential import normalize
from transparity_flax.masks import padding_mask, target_mask, visible_keys
from transparity_flax.norms.norm import Norm
from transparity_flax.positions.in_attention import contexts_by_kind
from transparity_flax.shapes import Hidden, Input, IsToken, Source, SourceIds, TokenIds
from transparity_flax.state.context import Context, Mask, MaskKind


class Stack(nnx.Module):
    """The embedding, layers and norms of the `encoder` or the `decoder`."""

    def __init__(self, name: str, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.name, self.config = name, config
        if name == "encoder" or not config.shared_embedding:  # else the encoder's table is an argument
            self.input = INPUTS[config.input_kinds[name]](config, name, rngs=rngs)
        if name == "encoder" and config.num_token_types:
            self.token_type_embedding = nnx.Embed(config.num_token_types, config.embed_dim, rngs=rngs)
        if (stack_config := config.for_stack(name)).positions == "learned":
            self.position_embedding = nnx.Embed(stack_config.num_positions, config.embed_dim, rngs=rngs)
        if config.embedding_norm:
            self.embedding_norm = Norm(config, rngs=rngs)
        if config.has_relative_bias:
            self.relative_bias = nnx.Embed(config.relative_buckets, config.num_heads, rngs=rngs)
        has_memory, count = name == "decoder" and config.has_encoder, config.stack_num_layers(name)
        kinds = [config.for_layer(name, i) for i in range(count)]
        self.layers = nnx.List(LAYERS[kind.branches](kind, rngs=rngs, has_memory=has_memory) for kind in kinds)
        if config.final_norm:
            self.final_norm = Norm(config, rngs=rngs)

    def __call__(self, tokens: Source, context: Context, reader: Any) -> Hidden:
        tap, config = context.tap, self.config
        x = tap("embedding", embed(self.name, self, reader, tokens, context))
        if config.embedding_norm:
            x = normalize(self, "embedding_norm", x, context)
        contexts = contexts_by_kind(self.name, self, context, x.dtype) if config.attends_by_position else {}
        for i, layer in enumerate(self.layers):
            given = contexts.get(config.layer_kind(self.name, i), context)
            cache = context.cache and context.cache["layers"][i]
            x = layer(x, given._replace(tap=scoped(tap, f"layers.{i}"), cache=cache))
        if self.config.final_norm:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Transformer(nnx.Module):
    """The whole model, with the output that `config.head` names, such as the logits of each next token.

    Args:
        inputs, named: The main inputs, such as `source` and `target` (`config.input_names`), in order or by name.
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.

    A new model is in evaluation mode. After `train()`, `dropout` applies to the activations that the configuration
    names.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config, width = config, config.embed_dim
        self.dropout = nnx.Dropout(config.dropout, deterministic=True, rngs=getattr(rngs, "dropout", None))
        if config.has_encoder:
            self.encoder = Stack("encoder", config, rngs=rngs)
        if config.has_decoder:
            self.decoder = Stack("decoder", config, rngs=rngs)
        if config.has_pooler:
            self.pooler = nnx.Linear(width, width, rngs=rngs)
        if config.head_transform:
            self.head_transform = nnx.Linear(width, width, use_bias=config.head_transform_bias, rngs=rngs)
            self.head_norm = Norm(config, rngs=rngs)
        if config.head in ("logits", "classes"):
            self.head = nnx.Linear(width, config.head_size, use_bias=config.head_bias, rngs=rngs)
        if config.has_tied_head:
            del self.head.kernel

    def reader(self, stack: str) -> Any:
        """Return the module that embeds a stack's input; both stacks may share one module."""
        return (self.encoder if self.config.shared_embedding else getattr(self, stack)).input

    def __call__(
        self,
        *inputs: Input,
        attention_mask: IsToken | SourceIds | None = None,
        token_types: TokenIds | None = None,
        tap: Tap = identity,
        **named: Input,
    ) -> Float[Array, "batch length vocab"] | Hidden | Float[Array, "batch features"]:
        config = self.config
        given = inputs_by_name(config, inputs, named)
        if config.dropout and not self.dropout.deterministic:
            tap = chained(dropped(config.dropout_at, self.dropout), tap)
        encoded: dict[str, Any] = {}
        for name, read in zip(config.stacks, config.input_names, strict=True):
            is_token = visible_keys(given[read], config.pad_id, attention_mask, config.positions_of(read))
            positions = jnp.arange(is_token.shape[1])[None]
            padding = Mask(padding_mask(is_token), "full" if config.pad_id is None and attention_mask is None else None)
            kind: MaskKind | None = "causal" if config.decoder_mask == "causal" else None
            mask = padding if name == "encoder" else Mask(target_mask(positions, is_token, config.decoder_mask), kind)
            context = Context(mask, positions, is_token, token_types, tap=scoped(tap, name), **encoded)
            x = getattr(self, name)(given[read], context, self.reader(name))
            encoded, attention_mask = {"memory": x, "memory_mask": padding}, None
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, given.get("tokens")))
        return tap("logits", HEADS[config.head](config, self, x))
