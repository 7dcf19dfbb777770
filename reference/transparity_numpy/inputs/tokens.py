"""The embedding of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.shapes import Hidden, TokenIds


def embed_tokens(
    config: TransformerConfig, parameters: Mapping[str, Any], tokens: TokenIds, tap: Tap = identity
) -> Hidden:
    """The row of the embedding table for each token."""
    return parameters["token_embedding"]["weight"][tokens]
