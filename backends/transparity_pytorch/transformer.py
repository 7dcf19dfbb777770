"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_pytorch.cache import Cache
from transparity_pytorch.embeddings import embed
from transparity_pytorch.layers import DecoderLayer, EncoderLayer
from transparity_pytorch.masks import padding_mask, target_mask
from transparity_pytorch.normalization import Norm


class Encoder(nn.Module):
    """The embedded tokens through every encoder layer."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.stack_vocab_size("encoder"), config.embed_dim)
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.max_length, config.embed_dim) if learned else None
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.num_encoder_layers))
        self.final_norm = Norm(config) if config.final_norm else None

    def forward(
        self, tokens: Int[Tensor, "batch length"], mask: Bool[Tensor, "batch 1 1 length"], tap: Tap = identity
    ) -> Float[Tensor, "batch length embed_dim"]:
        x = tap("embedding", embed(self.config, self.token_embedding, self.position_embedding, tokens))
        for i, layer in enumerate(self.layers):
            x = layer(x, mask, scoped(tap, f"layers.{i}"))
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Decoder(nn.Module):
    """The embedded tokens through every decoder layer, each looking at `memory` if there is one.

    With a `cache`, one for each layer, `tokens` stand at `positions`, behind those in it.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.stack_vocab_size("decoder"), config.embed_dim)
        learned = config.positions == "learned"
        self.position_embedding = nn.Embedding(config.max_length, config.embed_dim) if learned else None
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_decoder_layers))
        self.final_norm = Norm(config) if config.final_norm else None

    def forward(
        self,
        tokens: Int[Tensor, "batch queries"],
        mask: Bool[Tensor, "#batch 1 queries keys"],
        memory: Float[Tensor, "batch memory embed_dim"] | None = None,
        memory_mask: Bool[Tensor, "batch 1 1 memory"] | None = None,
        tap: Tap = identity,
        *,
        cache: list[Cache] | None = None,
        positions: Int[Tensor, "batch queries"] | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        x = tap("embedding", embed(self.config, self.token_embedding, self.position_embedding, tokens, positions))
        for i, layer in enumerate(self.layers):
            scope, kept = scoped(tap, f"layers.{i}"), cache[i] if cache else None
            x = layer(x, mask, memory, memory_mask, scope, cache=kept, positions=positions)
        if self.final_norm is not None:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Transformer(nn.Module):
    """The logits of the next token: of `target` given `source`, or of `tokens` for a lone stack."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        if config.has_encoder:
            self.encoder = Encoder(config)
        if config.has_decoder:
            self.decoder = Decoder(config)
        self.head = nn.Linear(config.embed_dim, config.vocab_size)

    def forward(
        self,
        *,
        source: Int[Tensor, "batch keys"] | None = None,
        target: Int[Tensor, "batch queries"] | None = None,
        tokens: Int[Tensor, "batch length"] | None = None,
        tap: Tap = identity,
    ) -> Float[Tensor, "batch length vocab"]:
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
