"""The embedding of tokens: rows of a learned table."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.shapes import Hidden, Parameters, TokenIds


def embed_tokens(config: TransformerConfig, parameters: Parameters, tokens: TokenIds, tap: Tap = identity) -> Hidden:
    """The row of the embedding table for each token."""
    return parameters["token_embedding"]["weight"][tokens]
