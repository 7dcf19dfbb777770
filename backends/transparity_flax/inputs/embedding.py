"""The embedding of a stack's input, with token types and positions. Each kind of input has a row of `INPUTS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Int

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_flax.inputs.frames import EmbedFrames
from transparity_flax.inputs.patches import EmbedPatches
from transparity_flax.positions.added import position_ids, sinusoidal_positions
from transparity_flax.shapes import Frames, Hidden, IsToken, Pixels, TokenIds


class EmbedTokens(nnx.Module):
    """The row of the embedding table for each token."""

    def __init__(self, config: TransformerConfig, stack: str, *, rngs: nnx.Rngs) -> None:
        self.token_embedding = nnx.Embed(config.stack_vocab_size(stack), config.embed_dim, rngs=rngs)

    def __call__(self, tokens: TokenIds, tap: Tap = identity) -> Hidden:
        return self.token_embedding.embedding[tokens]  # a call would return the dtype that the table was created with


Source = TokenIds | Pixels | Frames
"""The input of a stack."""

INPUTS: dict[str, Callable[..., Any]] = {"tokens": EmbedTokens, "patches": EmbedPatches, "frames": EmbedFrames}
"""The function for each `config.input_kind(stack)`."""


def embed(
    stack: str,
    config: TransformerConfig,
    module: Any,
    tokens: Source,
    positions: Int[Array, "#batch length"],
    is_token: IsToken,
    token_types: TokenIds | None = None,
    tap: Tap = identity,
    *,
    reader: Any = None,
) -> Hidden:
    """Return the sum of the input's embedding and, if configured, the embeddings of token types and positions.

    Args:
        module: The stack.
        positions: The positions of `tokens` in their sequences.
        is_token: True where a token is not padding, for all positions up to the last.
        reader: The module that embeds the tokens, if it belongs to another stack.
    """
    config = config.for_stack(stack)
    check_length(config, positions.shape[1])
    x = (module.input if reader is None else reader)(tokens, tap)
    if config.token_scale != 1:
        x = x * config.token_scale
    if token_types is not None:
        x = x + module.token_type_embedding.embedding[token_types]
    if config.positions == "learned":
        return x + module.position_embedding.embedding[position_ids(config, is_token, positions)]
    if config.positions == "sinusoidal":
        options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        table = sinusoidal_positions(is_token.shape[1], *options)
        return x + jnp.asarray(table, x.dtype)[positions]
    return x
