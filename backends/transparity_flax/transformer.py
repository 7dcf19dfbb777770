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
from transparity_flax.heads import head, pool
from transparity_flax.inputs.embedding import INPUTS, EmbedTokens, Source, embed
from transparity_flax.layers import LAYERS, normalize
from transparity_flax.masks import padding_mask, target_mask, visible_keys, visible_queries, window_mask
from transparity_flax.norms import Norm
from transparity_flax.positions.bias import query_temperature, score_bias
from transparity_flax.rotary import rotary_tables
from transparity_flax.shapes import Frames, Hidden, IsToken, Lengths, Memory, Pixels, SourceIds, TokenIds
from transparity_flax.state.cache import Cache
from transparity_flax.state.context import LayerContext, Mask, MaskKind

Output = Float[Array, "batch length vocab"] | Hidden | Float[Array, "batch features"]
"""The output: logits or hidden states, logits of classes, or a pooled state."""


def layer_context(config: TransformerConfig, context: LayerContext, dtype: jnp.dtype) -> LayerContext:
    """Return the context for a layer with this `config`, with the layer's window in the mask and its rotary tables."""
    mask, keys = context.mask, context.mask.array.shape[-1]
    if config.sliding_window is not None:
        window = window_mask(context.positions, keys, config.sliding_window, config.window_kind)
        mask = Mask(mask.array & window, mask.kind and "some")  # with a window, each query still sees itself
    given = context.positions, keys, dtype
    rotary = rotary_tables(config, *given) if config.positions == "rotary" else None
    temperature = query_temperature(config, *given) if config.query_temperature else None
    return context._replace(mask=mask, rotary=rotary, temperature=temperature)


class Stack(nnx.Module):
    """The layers and norms of an encoder or a decoder, applied to `x`; `cache` has one entry per layer."""

    def __init__(self, name: str, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.name, self.config = name, config
        # The decoder's table may be the encoder's; it is then passed as an argument.
        is_shared = name == "decoder" and config.shared_embedding
        self.input = None if is_shared else INPUTS[config.input_kind(name)](config, name, rngs=rngs)
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

    def apply_layers(self, x: Hidden, context: LayerContext, cache: list[Cache] | None = None) -> Hidden:
        tap = context.tap
        x = tap("embedding", x)
        if self.config.embedding_norm:
            x = normalize(self, "embedding_norm", x, context)
        kinds = self.config.layer_kinds.items()
        contexts = {kind: layer_context(layer_config, context, x.dtype) for kind, layer_config in kinds}
        for i, layer in enumerate(self.layers):
            given = contexts[self.config.layer_kind(self.name, i)]
            x = layer(x, given._replace(tap=scoped(tap, f"layers.{i}"), cache=cache[i] if cache else None))
        if self.config.final_norm:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Encoder(Stack):
    """The encoder of tokens, patches or frames of audio; each position sees all positions that are not padding.
    `mask_kind` is the kind of the padding mask, if the configuration determines it."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__("encoder", config, rngs=rngs)

    def __call__(
        self,
        tokens: Source,
        is_token: IsToken,
        tap: Tap = identity,
        *,
        token_types: TokenIds | None = None,
        mask_kind: MaskKind | None = None,
    ) -> Hidden:
        config, keys = self.config, is_token.shape[1]
        positions = jnp.arange(keys)[None]
        x = embed("encoder", config, self, tokens, positions, is_token, token_types, tap)
        context = LayerContext(
            mask=Mask(padding_mask(is_token), mask_kind),
            positions=positions,
            bias=score_bias(config, self, positions, keys, x.dtype, both=True) if config.has_score_bias else None,
            tap=tap,
        )
        return self.apply_layers(x, context)


class Decoder(Stack):
    """The decoder, in which each token sees itself and earlier tokens.

    Args:
        is_token: True for keys that are not padding. With a cache, these are all positions of the cache.
        positions: The positions of the tokens, if there is a cache. None means 0, 1 …
        memory: The encoder's output; None without an encoder, or if its keys and values are cached.
        memory_mask: True where cross-attention may attend; None without an encoder.
        cache: One entry per layer, updated in place.
        valid_lengths: With a `cache`, the number of tokens of each row that are not fillers. None means all.
        reader: The module that embeds the tokens, if the encoder owns it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__("decoder", config, rngs=rngs)

    def __call__(
        self,
        tokens: TokenIds,
        is_token: IsToken,
        tap: Tap = identity,
        *,
        positions: TokenIds | None = None,
        memory: Memory | None = None,
        memory_mask: Mask | None = None,
        cache: list[Cache] | None = None,
        valid_lengths: Lengths | None = None,
        reader: EmbedTokens | None = None,
    ) -> Hidden:
        config, keys = self.config, is_token.shape[1]
        kind: MaskKind = "causal" if positions is None else "some"
        positions = jnp.arange(keys)[None] if positions is None else positions
        x = embed("decoder", config, self, tokens, positions, is_token, reader=reader)
        hides_padding = config.decoder_mask == "causal-and-padding"
        context = LayerContext(
            mask=Mask(target_mask(positions, is_token, config.decoder_mask), None if hides_padding else kind),
            positions=positions,
            is_token=visible_queries(is_token, positions) if hides_padding and config.is_recurrent else None,
            valid_lengths=valid_lengths,
            bias=score_bias(config, self, positions, keys, x.dtype, both=False) if config.has_score_bias else None,
            memory=memory,
            memory_mask=memory_mask,
            tap=tap,
        )
        return self.apply_layers(x, context, cache)


def encoder_input(
    config: TransformerConfig,
    tokens: TokenIds | None,
    pixels: Pixels | None,
    attention_mask: IsToken | SourceIds | None,
) -> tuple[Array, IsToken]:
    """Return the input of an encoder-only model, and True where it is not padding; images have no padding."""
    if pixels is not None:
        return pixels, jnp.ones((len(pixels), config.max_length), bool)
    assert tokens is not None
    return tokens, visible_keys(tokens, config.pad_id, attention_mask)


class Transformer(nnx.Module):
    """The whole model: the logits of each next token, or the other output that `config.head` names.

    Args:
        inputs: The main inputs, in the order of `config.input_names`, unless they are given by name.
        source, target: The inputs of an encoder-decoder: tokens; the source may also be frames of audio.
        tokens: The input of an encoder-only or decoder-only model.
        pixels: Images, the input of an encoder in place of tokens.
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.

    A new model is in evaluation mode. After `train()`, `dropout` applies to the activations that the configuration
    names.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.dropout = nnx.Dropout(config.dropout, deterministic=True, rngs=getattr(rngs, "dropout", None))
        if config.has_encoder:
            self.encoder = Encoder(config, rngs=rngs)
        if config.has_decoder:
            self.decoder = Decoder(config, rngs=rngs)
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
        *inputs: Array,
        source: SourceIds | Frames | None = None,
        target: TokenIds | None = None,
        tokens: TokenIds | None = None,
        pixels: Pixels | None = None,
        attention_mask: IsToken | SourceIds | None = None,
        token_types: TokenIds | None = None,
        tap: Tap = identity,
    ) -> Output:
        config = self.config
        given = inputs_by_name(config, inputs, {"source": source, "target": target, "tokens": tokens, "pixels": pixels})
        if config.dropout and not self.dropout.deterministic:
            tap = chained(dropped(config.dropout_at, self.dropout), tap)
        kind: MaskKind | None = "full" if config.pad_id is None and attention_mask is None else None
        if config.architecture == "encoder-decoder":
            is_token, scope = visible_keys(given["source"], config.pad_id, attention_mask), scoped(tap, "encoder")
            memory = self.encoder(given["source"], is_token, scope, mask_kind=kind)
            mask = Mask(padding_mask(is_token), kind)
            is_token, scope = visible_keys(given["target"], config.pad_id), scoped(tap, "decoder")
            x = self.decoder(given["target"], is_token, scope, memory=memory, memory_mask=mask, reader=self.reader)
        elif config.architecture == "encoder":
            read, is_token = encoder_input(config, given.get("tokens"), given.get("pixels"), attention_mask)
            x = self.encoder(read, is_token, scoped(tap, "encoder"), token_types=token_types, mask_kind=kind)
        else:
            is_token, scope = visible_keys(given["tokens"], config.pad_id, attention_mask), scoped(tap, "decoder")
            x = self.decoder(given["tokens"], is_token, scope)
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, given.get("tokens", given.get("target"))))
        return tap("logits", head(config, self, x))
