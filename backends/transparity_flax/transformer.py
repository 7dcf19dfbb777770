"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.cache import Cache
from transparity_flax.embeddings import embed
from transparity_flax.head import head
from transparity_flax.layers import DecoderLayer, EncoderLayer
from transparity_flax.masks import padding_mask, target_mask
from transparity_flax.normalization import Norm
from transparity_flax.positions import places, window_mask


class Encoder(nnx.Module):
    """The embedded tokens through every encoder layer."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.token_embedding = nnx.Embed(config.stack_vocab_size("encoder"), config.embed_dim, rngs=rngs)
        types = config.num_token_types
        self.token_type_embedding = nnx.Embed(types, config.embed_dim, rngs=rngs) if types else None
        self.position_embedding, self.embedding_norm, self.relative_bias = _beside(config, rngs)
        self.layers = nnx.List(EncoderLayer(config, rngs=rngs) for _ in range(config.num_encoder_layers))
        self.final_norm = Norm(config, rngs=rngs) if config.final_norm else None

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        mask: Bool[Array, "batch 1 1 length"],
        tap: Tap = identity,
        *,
        token_types: Int[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch length embed_dim"]:
        config, tables = self.config, (self.token_embedding, self.position_embedding, self.token_type_embedding)
        x = tap("embedding", embed(config, *tables, tokens, mask[:, 0, 0], token_types=token_types))
        if self.embedding_norm is not None:
            x = tap("embedding_norm", self.embedding_norm(x, scoped(tap, "embedding_norm")))
        positions = jnp.arange(tokens.shape[1])[None]
        at = places(config, self.relative_bias, positions, tokens.shape[1], x.dtype, both=True)
        for i, layer in enumerate(self.layers):
            window = config.layer_window(i)
            seen = mask if window is None else mask & window_mask(positions, tokens.shape[1], window)
            x = layer(x, seen, scoped(tap, f"layers.{i}"), at=at)
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Decoder(nnx.Module):
    """The embedded tokens through every decoder layer, each looking at `memory` if there is one; positions may count
    what is `visible` alone.

    With a `cache`, one for each layer, `tokens` stand at `positions`, behind those in it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        # An embedding that is shared is the encoder's, and is given.
        vocab_size, own = config.stack_vocab_size("decoder"), not config.shared_embedding
        self.token_embedding = nnx.Embed(vocab_size, config.embed_dim, rngs=rngs) if own else None
        self.position_embedding, self.embedding_norm, self.relative_bias = _beside(config, rngs)
        self.layers = nnx.List(DecoderLayer(config, rngs=rngs) for _ in range(config.num_decoder_layers))
        self.final_norm = Norm(config, rngs=rngs) if config.final_norm else None

    def __call__(
        self,
        tokens: Int[Array, "batch queries"],
        mask: Bool[Array, "#batch 1 queries keys"],
        memory: Float[Array, "batch memory embed_dim"] | None = None,
        memory_mask: Bool[Array, "batch 1 1 memory"] | None = None,
        tap: Tap = identity,
        *,
        visible: Bool[Array, "batch keys"],
        token_embedding: nnx.Embed,
        cache: list[Cache] | None = None,
        positions: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries embed_dim"]:
        config, tables = self.config, (token_embedding, self.position_embedding, None)
        x = tap("embedding", embed(config, *tables, tokens, visible, positions))
        if self.embedding_norm is not None:
            x = tap("embedding_norm", self.embedding_norm(x, scoped(tap, "embedding_norm")))
        standing = jnp.arange(tokens.shape[1])[None] if positions is None else positions
        at = places(config, self.relative_bias, standing, visible.shape[1], x.dtype, both=False)
        for i, layer in enumerate(self.layers):
            scope, kept, window = scoped(tap, f"layers.{i}"), cache[i] if cache else None, config.layer_window(i)
            seen = mask if window is None else mask & window_mask(standing, visible.shape[1], window)
            x = layer(x, seen, memory, memory_mask, scope, cache=kept, positions=positions, at=at)
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Transformer(nnx.Module):
    """The logits of the next token: of `target` given `source`, or of `tokens` for a lone stack; or what else
    `config.head` names. An `attention_mask` is of the source, or of the tokens."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        if config.has_encoder:
            self.encoder = Encoder(config, rngs=rngs)
        if config.has_decoder:
            self.decoder = Decoder(config, rngs=rngs)
        if config.head == "pooled":
            self.pooler = nnx.Linear(config.embed_dim, config.embed_dim, rngs=rngs)
        if config.head == "logits":
            self.head = nnx.Linear(config.embed_dim, config.vocab_size, use_bias=config.head_bias, rngs=rngs)
        if config.head == "logits" and config.tied_head:
            del self.head.kernel

    @property
    def token_embedding(self) -> nnx.Embed:
        """The table of the last stack's tokens."""
        stack = self.decoder if self.config.has_decoder and not self.config.shared_embedding else self.encoder
        assert stack.token_embedding is not None
        return stack.token_embedding

    def __call__(
        self,
        *,
        source: Int[Array, "batch keys"] | None = None,
        target: Int[Array, "batch queries"] | None = None,
        tokens: Int[Array, "batch length"] | None = None,
        attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
        token_types: Int[Array, "batch length"] | None = None,
        tap: Tap = identity,
    ) -> Float[Array, "batch length vocab"] | Float[Array, "batch length embed_dim"] | Float[Array, "batch embed_dim"]:
        config = self.config
        if config.architecture == "encoder-decoder":
            assert source is not None and target is not None
            source_mask = padding_mask(source, config.pad_id, attention_mask)
            memory = self.encoder(source, source_mask, scoped(tap, "encoder"))
            mask = target_mask(target, config.pad_id, config.decoder_mask)
            visible, scope = padding_mask(target, config.pad_id)[:, 0, 0], scoped(tap, "decoder")
            table = self.token_embedding
            x = self.decoder(target, mask, memory, source_mask, scope, visible=visible, token_embedding=table)
        elif config.architecture == "encoder":
            assert tokens is not None
            mask = padding_mask(tokens, config.pad_id, attention_mask)
            x = self.encoder(tokens, mask, scoped(tap, "encoder"), token_types=token_types)
        else:
            assert tokens is not None
            mask = target_mask(tokens, config.pad_id, config.decoder_mask, attention_mask)
            visible, scope = padding_mask(tokens, config.pad_id, attention_mask)[:, 0, 0], scoped(tap, "decoder")
            table = self.token_embedding
            x = self.decoder(tokens, mask, tap=scope, visible=visible, token_embedding=table)
        return tap("logits", head(self, x))


def _beside(config: TransformerConfig, rngs: nnx.Rngs) -> tuple[nnx.Embed | None, Norm | None, nnx.Embed | None]:
    """What there may be of the embeddings beside the tokens' own: positions and a norm; and of distances."""
    rows = config.num_positions
    learned, relative = config.positions == "learned", config.positions == "relative"
    return (
        nnx.Embed(rows, config.embed_dim, rngs=rngs) if learned else None,
        Norm(config, rngs=rngs) if config.embedding_norm else None,
        nnx.Embed(config.relative_buckets, config.num_heads, rngs=rngs) if relative else None,
    )
