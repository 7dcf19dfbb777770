"""The three architectures: an encoder and a decoder, or either alone, under one head."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity, scoped
from transparity_pytorch.embeddings import Source, embed
from transparity_pytorch.head import head, pool, pooled_head, transform_for_head
from transparity_pytorch.layers import Layer, normalize
from transparity_pytorch.masks import padding_mask, target_mask, visible_keys, visible_queries, window_mask
from transparity_pytorch.normalization import Norm
from transparity_pytorch.positions import query_temperature, rotary_tables, score_bias
from transparity_pytorch.state.cache import Cache
from transparity_pytorch.state.context import LayerContext, MaskKind

Output = Float[Tensor, "batch length vocab"] | Float[Tensor, "batch length embed_dim"] | Float[Tensor, "batch features"]
"""Logits or hidden states; or classes or a pooled state."""


def layer_context(config: TransformerConfig, context: LayerContext, dtype: torch.dtype) -> LayerContext:
    """The context of a stack as a layer with this `config` sees it: its window in the mask, and its tables."""
    mask, mask_kind = context.mask, context.mask_kind
    if config.sliding_window is not None:
        mask_kind = mask_kind and "some"  # a window shows each query itself
        mask = mask & window_mask(context.positions, mask.shape[-1], config.sliding_window, config.window_kind)
    rotary = rotary_tables(config, context.positions, dtype)
    temperature = query_temperature(config, context.positions, dtype)
    return context._replace(mask=mask, mask_kind=mask_kind, rotary=rotary, temperature=temperature)


class Stack(nn.Module):
    """Embedded tokens through the layers of an encoder or a decoder, and its norms; `cache` has one entry per layer."""

    def __init__(self, config: TransformerConfig, name: str) -> None:
        super().__init__()
        self.name, self.config = name, config
        # The decoder's table may be the encoder's, which is then passed to it.
        reads_frames = config.reads_frames and name == "encoder"
        if not config.reads_pixels and not reads_frames and (name == "encoder" or not config.shared_embedding):
            self.token_embedding = nn.Embedding(config.stack_vocab_size(name), config.embed_dim)
        if name == "encoder" and config.num_token_types:
            self.token_type_embedding = nn.Embedding(config.num_token_types, config.embed_dim)
        if config.reads_pixels:
            self.patch_projection = nn.Linear(config.patch_dim, config.embed_dim, bias=config.patch_bias)
        if reads_frames:
            self.first_convolution = nn.Linear(3 * (config.mel_bins or 0), config.embed_dim)
            self.second_convolution = nn.Linear(3 * config.embed_dim, config.embed_dim)
        if config.class_token:
            self.class_embedding = nn.Embedding(1, config.embed_dim)
        if (layer_config := config.for_stack(name)).positions == "learned":
            self.position_embedding = nn.Embedding(layer_config.num_positions, config.embed_dim)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        relative = config.has_relative_bias
        self.relative_bias = nn.Embedding(config.relative_buckets, config.num_heads) if relative else None
        has_memory, count = name == "decoder" and config.has_encoder, config.stack_num_layers(name)
        self.layers = nn.ModuleList(Layer(config.for_layer(name, i), has_memory=has_memory) for i in range(count))
        if config.final_norm:
            self.final_norm = Norm(config)

    @property
    def tables(self) -> dict[str, nn.Embedding]:
        """The tables of embeddings by name."""
        modules = self.named_children()
        return {name: module for name, module in modules if isinstance(module, nn.Embedding)}

    @property
    def projections(self) -> dict[str, nn.Linear]:
        """The linear maps of what is read in place of tokens, by name."""
        names = ("patch_projection", "first_convolution", "second_convolution")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def apply_layers(
        self,
        x: Float[Tensor, "batch queries embed_dim"],
        context: LayerContext,
        tap: Tap = identity,
        cache: list[Cache] | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        x = tap("embedding", x)
        if self.config.embedding_norm:
            x = normalize(self, "embedding_norm", x, tap)
        contexts = {
            kind: layer_context(layer_config, context, x.dtype)
            for kind, layer_config in self.config.layer_kinds.items()
        }
        for i, layer in enumerate(self.layers):
            given = contexts[self.config.layer_kind(self.name, i)]
            kept, scope = cache[i] if cache else None, scoped(tap, f"layers.{i}")
            x = layer(x, given, scope, kept)
        if self.config.final_norm:
            x = self.final_norm(x, scoped(tap, "final_norm"))
        return tap("output", x)


class Encoder(Stack):
    """Encode `tokens`, or the patches of pixels or frames of audio, each of which sees all that are `is_token`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "encoder")

    def forward(
        self,
        tokens: Source,
        is_token: Bool[Tensor, "batch length"],
        tap: Tap = identity,
        *,
        token_types: Int[Tensor, "batch length"] | None = None,
        mask_kind: MaskKind | None = None,
    ) -> Float[Tensor, "batch length embed_dim"]:
        config, keys = self.config, is_token.shape[1]
        positions = torch.arange(keys, device=tokens.device)[None]
        layer_config = config.for_stack("encoder")
        x = embed(layer_config, self.tables, tokens, positions, is_token, token_types, self.projections, tap)
        context = LayerContext(
            mask=padding_mask(is_token),
            mask_kind=mask_kind,
            positions=positions,
            bias=score_bias(config, self.relative_bias, positions, keys, x.dtype, both=True),
        )
        return self.apply_layers(x, context, tap)


class Decoder(Stack):
    """Decode `tokens`, each of which sees itself and earlier tokens.

    Args of `forward`:
        is_token: True for keys that are not padding: the tokens, or with a cache everything in it.
        token_embedding: The decoder's table, or the encoder's where it is shared.
        positions: Positions of the tokens in a cache; None: 0, 1 …
        memory: The encoder's output; None without an encoder, or if its keys and values are cached.
        memory_mask: True where cross-attention may attend; None without an encoder.
        memory_mask_kind: What the configuration tells of it.
        cache: One entry per layer, updated in place.
        valid_lengths: Number of tokens of each row that a `cache` goes on from; None: all.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "decoder")

    def forward(
        self,
        tokens: Int[Tensor, "batch queries"],
        is_token: Bool[Tensor, "batch keys"],
        tap: Tap = identity,
        *,
        token_embedding: nn.Embedding,
        positions: Int[Tensor, "batch queries"] | None = None,
        memory: Float[Tensor, "batch memory embed_dim"] | None = None,
        memory_mask: Bool[Tensor, "batch 1 1 memory"] | None = None,
        memory_mask_kind: MaskKind | None = None,
        cache: list[Cache] | None = None,
        valid_lengths: Int[Tensor, " batch"] | None = None,
    ) -> Float[Tensor, "batch queries embed_dim"]:
        config, keys = self.config, is_token.shape[1]
        mask_kind: MaskKind | None = None
        if config.decoder_mask == "causal":
            mask_kind = "causal" if positions is None else "some"
        positions = torch.arange(keys, device=tokens.device)[None] if positions is None else positions
        x = embed(config, self.tables | {"token_embedding": token_embedding}, tokens, positions, is_token)
        masked = config.is_recurrent and config.decoder_mask == "causal-and-padding"
        context = LayerContext(
            mask=target_mask(positions, is_token, config.decoder_mask),
            mask_kind=mask_kind,
            positions=positions,
            is_token=visible_queries(is_token, positions) if masked else None,
            valid_lengths=valid_lengths,
            bias=score_bias(config, self.relative_bias, positions, keys, x.dtype, both=False),
            memory=memory,
            memory_mask=memory_mask,
            memory_mask_kind=memory_mask_kind,
        )
        return self.apply_layers(x, context, tap, cache)


def encoder_input(
    config: TransformerConfig,
    tokens: Int[Tensor, "batch length"] | None,
    pixels: Float[Tensor, "batch channels height width"] | None,
    attention_mask: Bool[Tensor, "batch length"] | Int[Tensor, "batch length"] | None,
) -> tuple[Tensor, Bool[Tensor, "batch length"]]:
    """What a lone encoder reads, and where it is visible: tokens, or pixels, of which all patches are."""
    if pixels is not None:
        return pixels, torch.ones(len(pixels), config.max_length, dtype=torch.bool, device=pixels.device)
    assert tokens is not None
    return tokens, visible_keys(tokens, config.pad_id, attention_mask)


class Transformer(nn.Module):
    """Logits of the next token, or the other output that `config.head` names.

    Args of `forward`:
        source, target: Tokens of an encoder-decoder; its source may be frames of audio.
        tokens: Tokens of a lone encoder or decoder.
        pixels: Images, in place of tokens of a lone encoder.
        attention_mask: 0 at padding of the source, or of `tokens`.
        tap: Called with every named activation; its result is used in place of the activation.
        out: Memory that the logits may be in.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        if config.has_encoder:
            self.encoder = Encoder(config)
        if config.has_decoder:
            self.decoder = Decoder(config)
        if config.has_pooler:
            self.pooler = nn.Linear(config.embed_dim, config.embed_dim)
        if config.head_transform:
            self.head_transform = nn.Linear(config.embed_dim, config.embed_dim, bias=config.head_transform_bias)
            self.head_norm = Norm(config)
        if config.head in ("logits", "classes"):
            self.head = nn.Linear(config.embed_dim, config.head_size, bias=config.head_bias)
        if config.has_tied_head:
            self.head.weight = self.token_embedding.weight

    @property
    def token_embedding(self) -> nn.Embedding:
        """Table of the last stack's tokens."""
        stack = self.decoder if self.config.has_decoder and not self.config.shared_embedding else self.encoder
        return stack.token_embedding

    def apply_head(
        self, x: Float[Tensor, "batch length embed_dim"] | Float[Tensor, "batch embed_dim"], out: Output | None = None
    ) -> Output:
        if self.config.head == "hidden":
            return x
        if self.config.is_pooled:
            return pooled_head(self, self.config, x)
        if self.config.head_transform:
            x = transform_for_head(self.config, self.head_transform, self.head_norm, x)
        return head(self.config, self.head, x, out)

    def forward(
        self,
        *,
        source: Int[Tensor, "batch keys"] | Float[Tensor, "batch mel_bins frames"] | None = None,
        target: Int[Tensor, "batch queries"] | None = None,
        tokens: Int[Tensor, "batch length"] | None = None,
        pixels: Float[Tensor, "batch channels height width"] | None = None,
        attention_mask: Bool[Tensor, "batch keys"] | Int[Tensor, "batch keys"] | None = None,
        token_types: Int[Tensor, "batch length"] | None = None,
        tap: Tap = identity,
        out: Output | None = None,
    ) -> Output:
        config = self.config
        mask_kind: MaskKind | None = "full" if config.pad_id is None and attention_mask is None else None
        if config.architecture == "encoder-decoder":
            assert source is not None and target is not None
            is_token, scope = visible_keys(source, config.pad_id, attention_mask), scoped(tap, "encoder")
            memory = self.encoder(source, is_token, scope, mask_kind=mask_kind)
            mask, table = padding_mask(is_token), self.token_embedding
            is_token, scope = visible_keys(target, config.pad_id), scoped(tap, "decoder")
            x = self.decoder(
                target,
                is_token,
                scope,
                token_embedding=table,
                memory=memory,
                memory_mask=mask,
                memory_mask_kind=mask_kind,
            )
        elif config.architecture == "encoder":
            (read, is_token), scope = encoder_input(config, tokens, pixels, attention_mask), scoped(tap, "encoder")
            x = self.encoder(read, is_token, scope, token_types=token_types, mask_kind=mask_kind)
        else:
            assert tokens is not None
            is_token, scope = visible_keys(tokens, config.pad_id, attention_mask), scoped(tap, "decoder")
            x = self.decoder(tokens, is_token, scope, token_embedding=self.token_embedding)
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, tokens if target is None else target))
        return tap("logits", self.apply_head(x, out))
