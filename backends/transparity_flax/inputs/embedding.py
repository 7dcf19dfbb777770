"""The embedding of a stack's input, with token types and positions. Each kind of input has a row of `INPUTS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_flax.inputs.frames import EmbedFrames
from transparity_flax.inputs.patches import EmbedPatches
from transparity_flax.positions import ADDED
from transparity_flax.shapes import Hidden, Source, TokenIds
from transparity_flax.state.context import Context


class EmbedTokens(nnx.Module):
    """Return the row of the embedding table for each token."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.token_embedding = nnx.Embed(config.stack_vocab_size(stack), config.embed_dim, rngs=rngs)

    def __call__(self, tokens: TokenIds, tap: Tap = identity) -> Hidden:
        return self.token_embedding.embedding[tokens]  # a call would return the dtype that the table was created with


INPUTS: dict[str, Callable[..., Any]] = {"tokens": EmbedTokens, "patches": EmbedPatches, "frames": EmbedFrames}
"""The class for each `config.input_kinds[stack]`."""


def embed(stack: str, module: Any, reader: Any, tokens: Source, context: Context) -> Hidden:
    """Return the sum of the embeddings: of the input by `reader` and, if configured, of token types and positions."""
    config = module.config.for_stack(stack)
    check_length(config, context.positions.shape[1])
    x = reader(tokens, context.tap)
    x = x if config.token_scale == 1 else x * config.token_scale
    x = x if context.token_types is None else x + module.token_type_embedding.embedding[context.token_types]
    add = ADDED.get(config.positions)
    return x if add is None else add(config, module, x, context)
