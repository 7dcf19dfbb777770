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
from transparity_flax.heads.logits import HEADS
from transparity_flax.heads.pooling import pool
from transparity_flax.inputs.embedding import INPUTS, EmbedTokens, embed
from transparity_flax.layers import LAYERS
from transparity_flax.layers.sequential import normalize
from transparity_flax.masks import padding_mask, target_mask, visible_keys
from transparity_flax.norms.norm import Norm
from transparity_flax.positions.in_attention import contexts_by_kind
from transparity_flax.shapes import Frames, Hidden, Input, IsToken, Pixels, Source, SourceIds, TokenIds
from transparity_flax.state.context import Context, Mask


class Stack(nnx.Module):
    """The embedding, layers and norms of the `encoder` or the `decoder`.

    `reader` is the module that embeds the input; it belongs to the encoder if both stacks share a table.
    """

    def __init__(self, name: str, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.name, self.config = name, config
        # The decoder's table may be the encoder's; it is then passed as an argument.
        is_shared = name == "decoder" and config.shared_embedding
        self.input = None if is_shared else INPUTS[config.input_kinds[name]](config, name, rngs=rngs)
        if name == "encoder" and config.num_token_types:
            self.token_type_embedding = nnx.Embed(config.num_token_types, config.embed_dim, rngs=rngs)
        if (layer_config := config.for_stack(name)).positions == "learned":
            self.position_embedding = nnx.Embed(layer_config.num_positions, config.embed_dim, rngs=rngs)
        if config.embedding_norm:
            self.embedding_norm = Norm(config, rngs=rngs)
        if config.has_relative_bias:
            self.relative_bias = nnx.Embed(config.relative_buckets, config.num_heads, rngs=rngs)
        has_memory, count = name == "decoder" and config.has_encoder, config.stack_num_layers(name)
        kinds = [config.for_layer(name, i) for i in range(count)]
        self.layers = nnx.List(LAYERS[kind.branches](kind, rngs=rngs, has_memory=has_memory) for kind in kinds)
        if config.final_norm:
            self.final_norm = Norm(config, rngs=rngs)

    def __call__(self, tokens: Source, context: Context, *, reader: EmbedTokens | None = None) -> Hidden:
        tap, config = context.tap, self.config
        x = tap("embedding", embed(self.name, self, tokens, context, reader=reader))
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
    """The whole model: the logits of each next token, or the other output that `config.head` names.

    Args:
        inputs: The main inputs, in the order of `config.input_names`, unless they are given by name.
        source, target: The inputs of an encoder-decoder: tokens; the source may also be frames of audio.
        tokens, pixels: The input of a model with one stack: tokens, or images for an encoder.
        others: Inputs of other names (`config.input_names`).
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.

    A new model is in evaluation mode. After `train()`, `dropout` applies to the activations that the configuration
    names.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.dropout = nnx.Dropout(config.dropout, deterministic=True, rngs=getattr(rngs, "dropout", None))
        if config.has_encoder:
            self.encoder = Stack("encoder", config, rngs=rngs)
        if config.has_decoder:
            self.decoder = Stack("decoder", config, rngs=rngs)
        if config.has_pooler:
            self.pooler = nnx.Linear(config.embed_dim, config.embed_dim, rngs=rngs)
        if config.head_transform:
            bias = config.head_transform_bias
            self.head_transform = nnx.Linear(config.embed_dim, config.embed_dim, use_bias=bias, rngs=rngs)
            self.head_norm = Norm(config, rngs=rngs)
        if config.head in ("logits", "classes"):
            self.head = nnx.Linear(config.embed_dim, config.head_size, use_bias=config.head_bias, rngs=rngs)
        if config.has_tied_head:
            del self.head.kernel

    @property
    def reader(self) -> Any:
        """The module that embeds the tokens of the last stack; it belongs to the encoder if the embedding is shared."""
        is_last = self.config.has_decoder and not self.config.shared_embedding
        return (self.decoder if is_last else self.encoder).input

    @property
    def token_embedding(self) -> nnx.Embed:
        """The table of the last stack's token embeddings."""
        return self.reader.token_embedding

    def __call__(
        self,
        *inputs: Input,
        source: SourceIds | Frames | None = None,
        target: TokenIds | None = None,
        tokens: TokenIds | None = None,
        pixels: Pixels | None = None,
        attention_mask: IsToken | SourceIds | None = None,
        token_types: TokenIds | None = None,
        tap: Tap = identity,
        **others: Input,
    ) -> Float[Array, "batch length vocab"] | Hidden | Float[Array, "batch features"]:
        config = self.config
        named = {"source": source, "target": target, "tokens": tokens, "pixels": pixels}
        given = inputs_by_name(config, inputs, named, others)
        if config.dropout and not self.dropout.deterministic:
            tap = chained(dropped(config.dropout_at, self.dropout), tap)
        encoded: dict[str, Any] = {}
        for name, read in zip(config.stacks, config.input_names, strict=True):
            is_token = visible_keys(given[read], config.pad_id, attention_mask, config.positions_of(read))
            positions = jnp.arange(is_token.shape[1])[None]
            hides_nothing = config.pad_id is None and attention_mask is None
            mask = padding = Mask(padding_mask(is_token), "full" if hides_nothing else None)
            if name == "decoder":
                causal = target_mask(positions, is_token, config.decoder_mask)
                mask = Mask(causal, "causal" if config.decoder_mask == "causal" else None)
            context = Context(mask, positions, is_token, token_types, tap=scoped(tap, name), **encoded)
            own = getattr(self, name)
            x = own(given[read], context, reader=own.input or self.reader)
            encoded, attention_mask = {"memory": x, "memory_mask": padding}, None
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, given.get("tokens")))
        return tap("logits", HEADS[config.head](config, self, x))
