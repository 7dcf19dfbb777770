"""The model: an encoder, a decoder, or both, with a head."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.inputs import inputs_by_name
from transparity.taps import Tap, chained, identity, scoped
from transparity_pytorch.arithmetic.changes import dropped
from transparity_pytorch.heads import HEADS
from transparity_pytorch.heads.pooled import pool
from transparity_pytorch.inputs import INPUTS
from transparity_pytorch.inputs.embedding import embed
from transparity_pytorch.layers import LAYERS
from transparity_pytorch.layers.sequential import normalize
from transparity_pytorch.masks import padding_mask, target_mask, visible_keys
from transparity_pytorch.norms.norm import Norm
from transparity_pytorch.positions.in_attention import contexts_by_kind
from transparity_pytorch.shapes import Frames, Hidden, Input, IsToken, Pixels, Source, SourceIds, TokenIds
from transparity_pytorch.state.context import Context, Mask, MaskKind
from transparity_pytorch.state.tied import tie_embeddings


class Stack(nn.Module):
    """The embedding, layers and norms of the `encoder` or the `decoder`."""

    def __init__(self, name: str, config: TransformerConfig) -> None:
        super().__init__()
        self.name, self.config = name, config
        make, _ = INPUTS[config.input_kinds[name]]
        for part, module in make(config, name).items():
            self.add_module(part, module)
        if name == "encoder" and config.num_token_types:
            self.token_type_embedding = nn.Embedding(config.num_token_types, config.embed_dim)
        if (stack_config := config.for_stack(name)).positions == "learned":
            self.position_embedding = nn.Embedding(stack_config.num_positions, config.embed_dim)
        if config.embedding_norm:
            self.embedding_norm = Norm(config)
        if config.has_relative_bias:
            self.relative_bias = nn.Embedding(config.relative_buckets, config.num_heads)
        has_memory = name == "decoder" and config.has_encoder
        kinds = [config.for_layer(name, i) for i in range(config.stack_num_layers(name))]
        self.layers = nn.ModuleList(LAYERS[kind.branches](kind, has_memory=has_memory) for kind in kinds)
        if config.final_norm:
            self.final_norm = Norm(config)

    def forward(self, tokens: Source, context: Context) -> Hidden:
        tap, config = context.tap, self.config
        x = tap("embedding", embed(self.name, self, tokens, context))
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


class Transformer(nn.Module):
    """The whole model, with the output that `config.head` names, such as the logits of each next token.

    Args:
        inputs, others: The main inputs, such as `source` and `target` (`config.input_names`), in order or by name.
        attention_mask: Zero where the source, or `tokens`, has padding.
        tap: A function that is called with every named activation; its result replaces the activation.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.dropout = nn.Dropout(config.dropout)
        if config.has_encoder:
            self.encoder = Stack("encoder", config)
        if config.has_decoder:
            self.decoder = Stack("decoder", config)
        if config.has_pooler:
            self.pooler = nn.Linear(config.embed_dim, config.embed_dim)
        if config.head_transform:
            self.head_transform = nn.Linear(config.embed_dim, config.embed_dim, bias=config.head_transform_bias)
            self.head_norm = Norm(config)
        if config.head in ("logits", "classes"):
            self.head = nn.Linear(config.embed_dim, config.head_size, bias=config.head_bias)
        for name, value in self.named_parameters():  # Glorot's bound (document 003); gains are unchanged
            if value.ndim > 1:
                nn.init.xavier_uniform_(value)
            elif name.endswith(".bias"):
                nn.init.zeros_(value)
        tie_embeddings(config, self)

    def forward(
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
    ) -> Float[Tensor, "batch length vocab"] | Hidden | Float[Tensor, "batch features"]:
        config = self.config
        named = {"source": source, "target": target, "tokens": tokens, "pixels": pixels}
        given = inputs_by_name(config, inputs, named | others)
        if self.dropout.training and config.dropout:
            tap = chained(dropped(config.dropout_at, self.dropout), tap)
        encoded: dict[str, Any] = {}
        for name, read in zip(config.stacks, config.input_names, strict=True):
            is_token = visible_keys(given[read], config.pad_id, attention_mask, config.positions_of(read))
            positions = torch.arange(is_token.shape[1], device=is_token.device)[None]
            padding = Mask(padding_mask(is_token), "full" if config.pad_id is None and attention_mask is None else None)
            kind: MaskKind | None = "causal" if config.decoder_mask == "causal" else None
            mask = padding if name == "encoder" else Mask(target_mask(positions, is_token, config.decoder_mask), kind)
            context = Context(mask, positions, is_token, token_types, tap=scoped(tap, name), **encoded)
            x = getattr(self, name)(given[read], context)
            encoded, attention_mask = {"memory": x, "memory_mask": padding}, None
        if config.is_pooled:
            x = tap("pooled", pool(config, x, is_token, given.get("tokens")))
        return tap("logits", HEADS[config.head](config, self, x))
