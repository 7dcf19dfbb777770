"""The embedding of tokens: rows of a learned table."""

from __future__ import annotations

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.shapes import Hidden, TokenIds


class EmbedTokens(nnx.Module):
    """The row of the embedding table for each token."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.token_embedding = nnx.Embed(config.stack_vocab_size(stack), config.embed_dim, rngs=rngs)

    def __call__(self, tokens: TokenIds, tap: Tap = identity) -> Hidden:
        return self.token_embedding.embedding[tokens]  # a call would return the dtype that the table was created with
