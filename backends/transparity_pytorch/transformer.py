"""The model: an encoder, a decoder, or both, with a head."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.inputs import inputs_by_name
from transparity.taps import Tap, chained, identity, scoped
from transparity_pytorch.arithmetic.changes import dropped
from transparity_pytorch.heads import head, pool
from transparity_pytorch.inputs.embedding import Source, embed, embedding_parts
from transparity_pytorch.layers import LAYERS, normalize
from transparity_pytorch.masks import padding_mask, target_mask, visible_keys, visible_queries, window_mask
from transparity_pytorch.norms import Norm
from transparity_pytorch.positions.bias import query_temperature, score_bias
from transparity_pytorch.rotary import rotary_tables
from transparity_pytorch.shapes import Frames, Hidden, IsToken, Lengths, Memory, Pixels, SourceIds, TokenIds
from transparity_pytorch.state.cache import Cache
from transparity_pytorch.state.context import LayerContext, Mask, MaskKind
from transparity_pytorch.state.parameters import initialize, tie

Output = Float[Tensor, "batch length vocab"] | Hidden | Float[Tensor, "batch features"]
"""The output: logits or hidden states, logits of classes, or a pooled state."""


def layer_context(config: TransformerConfig, context: LayerContext, dtype: torch.dtype) -> LayerContext:
    """Return the context for a layer with this `config`, with the layer's window in the mask and its rotary tables."""
    (mask, kind), positions = context.mask, context.positions
    if config.sliding_window is not None:
        kind = kind and "some"  # with a window, each query still sees itself
        mask = mask & window_mask(positions, mask.shape[-1], config.sliding_window, config.window_kind)
    rotary = rotary_tables(config, positions, dtype) if config.positions == "rotary" else None
    temperature = query_temperature(config, positions, dtype) if config.query_temperature else None
    return context._replace(mask=Mask(mask, kind), rotary=rotary, temperature=temperature)


class Stack(nn.Module):
    """The layers and norms of an encoder or a decoder, applied to `x`; `cache` has one entry per layer."""

    token_embedding: nn.Embedding

    def __init__(self, config: TransformerConfig, name: str) -> None:
        super().__init__()
        self.name, self.config = name, config
        for part, module in embedding_parts(config, name).items():
            self.add_module(part, module)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        if config.has_relative_bias:
            self.relative_bias = nn.Embedding(config.relative_buckets, config.num_heads)
        has_memory, kinds = name == "decoder" and config.has_encoder, config.stack_num_layers(name)
        own = [config.for_layer(name, i) for i in range(kinds)]
        self.layers = nn.ModuleList(LAYERS[it.branches](it, has_memory=has_memory) for it in own)
        if config.final_norm:
            self.final_norm = Norm(config)

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
    """The encoder of tokens, patches or frames of audio; each position sees all positions that are not padding."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "encoder")

    def forward(
        self,
        tokens: Source,
        is_token: IsToken,
        tap: Tap = identity,
        *,
        token_types: TokenIds | None = None,
        mask_kind: MaskKind | None = None,
    ) -> Hidden:
        config, keys = self.config, is_token.shape[1]
        positions = torch.arange(keys, device=tokens.device)[None]
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
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, "decoder")

    def forward(
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
    ) -> Hidden:
        config, keys = self.config, is_token.shape[1]
        kind: MaskKind | None = None
        if config.decoder_mask == "causal":
            kind = "causal" if positions is None else "some"
        positions = torch.arange(keys, device=tokens.device)[None] if positions is None else positions
        x = embed("decoder", config, self, tokens, positions, is_token)
        masked = config.is_recurrent and config.decoder_mask == "causal-and-padding"
        context = LayerContext(
            mask=Mask(target_mask(positions, is_token, config.decoder_mask), kind),
            positions=positions,
            is_token=visible_queries(is_token, positions) if masked else None,
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
) -> tuple[Tensor, IsToken]:
    """Return the input of an encoder-only model, and True where it is not padding; images have no padding."""
    if pixels is not None:
        return pixels, torch.ones(len(pixels), config.max_length, dtype=torch.bool, device=pixels.device)
    assert tokens is not None
    return tokens, visible_keys(tokens, config.pad_id, attention_mask)


class Transformer(nn.Module):
    """The whole model: the logits of each next token, or the other output that `config.head` names.

    Args:
        inputs: The main inputs, in the order of `config.input_names`, unless they are given by name.
        source, target: The inputs of an encoder-decoder: tokens; the source may also be frames of audio.
        tokens: The input of an encoder-only or decoder-only model.
        pixels: Images, the input of an encoder in place of tokens.
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.

    In training, `dropout` applies to the activations that the configuration names.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
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
        self.apply(initialize)
        if config.shared_embedding:
            self.decoder.token_embedding = self.encoder.token_embedding
            tie(self, "decoder.token_embedding.weight", "encoder.token_embedding.weight")
        if config.has_tied_head:
            tie(self, "head.weight", f"{config.stacks[-1]}.token_embedding.weight")

    @property
    def token_embedding(self) -> nn.Embedding:
        """The table of the last stack's token embeddings."""
        return (self.decoder if self.config.has_decoder else self.encoder).token_embedding

    def forward(
        self,
        *inputs: Tensor,
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
        if self.dropout.training and config.dropout:
            tap = chained(dropped(config.dropout_at, self.dropout), tap)
        kind: MaskKind | None = "full" if config.pad_id is None and attention_mask is None else None
        if config.architecture == "encoder-decoder":
            is_token, scope = visible_keys(given["source"], config.pad_id, attention_mask), scoped(tap, "encoder")
            memory = self.encoder(given["source"], is_token, scope, mask_kind=kind)
            mask = Mask(padding_mask(is_token), kind)
            is_token, scope = visible_keys(given["target"], config.pad_id), scoped(tap, "decoder")
            x = self.decoder(given["target"], is_token, scope, memory=memory, memory_mask=mask)
        elif config.architecture == "encoder":
            read, is_token = encoder_input(config, given.get("tokens"), given.get("pixels"), attention_mask)
            scope = scoped(tap, "encoder")
            x = self.encoder(read, is_token, scope, token_types=token_types, mask_kind=kind)
        else:
            is_token, scope = visible_keys(given["tokens"], config.pad_id, attention_mask), scoped(tap, "decoder")
            x = self.decoder(given["tokens"], is_token, scope)
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, given.get("tokens", given.get("target"))))
        return tap("logits", head(config, self, x))
