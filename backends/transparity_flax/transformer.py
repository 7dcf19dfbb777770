"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_flax.cache import Cache
from transparity_flax.embeddings import embed
from transparity_flax.layers import DecoderLayer, EncoderLayer
from transparity_flax.masks import padding_mask, target_mask
from transparity_flax.normalization import Norm


class Encoder(nnx.Module):
    """The embedded tokens through every encoder layer."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.token_embedding = nnx.Embed(config.stack_vocab_size("encoder"), config.embed_dim, rngs=rngs)
        learned = config.positions == "learned"
        self.position_embedding = nnx.Embed(config.max_length, config.embed_dim, rngs=rngs) if learned else None
        self.layers = nnx.List(EncoderLayer(config, rngs=rngs) for _ in range(config.num_encoder_layers))
        self.final_norm = Norm(config, rngs=rngs) if config.final_norm else None

    def __call__(
        self, tokens: Int[Array, "batch length"], mask: Bool[Array, "batch 1 1 length"], tap: Tap = identity
    ) -> Float[Array, "batch length embed_dim"]:
        x = tap("embedding", embed(self.config, self.token_embedding, self.position_embedding, tokens))
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, scoped(tap, f"layers.{i}"))
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Decoder(nnx.Module):
    """The embedded tokens through every decoder layer, each looking at `memory` if there is one.

    With a `cache`, one for each layer, `tokens` stand at `positions`, behind those in it.
    """

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.token_embedding = nnx.Embed(config.stack_vocab_size("decoder"), config.embed_dim, rngs=rngs)
        learned = config.positions == "learned"
        self.position_embedding = nnx.Embed(config.max_length, config.embed_dim, rngs=rngs) if learned else None
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
        cache: list[Cache] | None = None,
        positions: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries embed_dim"]:
        x = tap("embedding", embed(self.config, self.token_embedding, self.position_embedding, tokens, positions))
        for i, layer in enumerate(self.layers):
            scope, kept = scoped(tap, f"layers.{i}"), cache[i] if cache else None
            x = layer(x, mask, memory, memory_mask, scope, cache=kept, positions=positions)
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Transformer(nnx.Module):
    """The logits of the next token: of `target` given `source`, or of `tokens` for a lone stack."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        if config.has_encoder:
            self.encoder = Encoder(config, rngs=rngs)
        if config.has_decoder:
            self.decoder = Decoder(config, rngs=rngs)
        self.head = nnx.Linear(config.embed_dim, config.vocab_size, rngs=rngs)

    def __call__(
        self,
        *,
        source: Int[Array, "batch keys"] | None = None,
        target: Int[Array, "batch queries"] | None = None,
        tokens: Int[Array, "batch length"] | None = None,
        tap: Tap = identity,
    ) -> Float[Array, "batch length vocab"]:
        config = self.config
        if config.architecture == "encoder-decoder":
            assert source is not None and target is not None
            source_mask = padding_mask(source, config.pad_id)
            memory = self.encoder(source, source_mask, scoped(tap, "encoder"))
            mask = target_mask(target, config.pad_id, config.target_mask)
            x = self.decoder(target, mask, memory, source_mask, scoped(tap, "decoder"))
        elif config.architecture == "encoder":
            assert tokens is not None
            mask = padding_mask(tokens, config.pad_id)
            x = self.encoder(tokens, mask, scoped(tap, "encoder"))
        else:
            assert tokens is not None
            mask = target_mask(tokens, config.pad_id, config.target_mask)
            x = self.decoder(tokens, mask, tap=scoped(tap, "decoder"))
        return tap("logits", self.head(x))
