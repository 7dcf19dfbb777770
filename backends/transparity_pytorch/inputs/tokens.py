"""The embedding of tokens: rows of a learned table."""

from __future__ import annotations

from typing import Any

from torch import nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.shapes import Hidden, TokenIds


def token_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return a new embedding table; if both stacks share a table, `tie_embeddings` later replaces the decoder's
    table."""
    return {"token_embedding": nn.Embedding(config.stack_vocab_size(stack), config.embed_dim)}


def embed_tokens(config: TransformerConfig, module: Any, tokens: TokenIds, tap: Tap = identity) -> Hidden:
    """The row of the embedding table for each token."""
    return module.token_embedding(tokens)
