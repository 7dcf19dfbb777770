"""The embedding of a stack's input, with token types and positions. Each kind of input has a row of `INPUTS`."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_numpy.inputs.frames import embed_frames
from transparity_numpy.inputs.patches import embed_patches
from transparity_numpy.positions.added import position_ids, sinusoidal_positions
from transparity_numpy.shapes import Frames, Hidden, IsToken, Parameters, Pixels, TokenIds


def embed_tokens(config: TransformerConfig, parameters: Parameters, tokens: TokenIds, tap: Tap = identity) -> Hidden:
    """The row of the embedding table for each token."""
    return parameters["token_embedding"]["weight"][tokens]


Source = TokenIds | Pixels | Frames
"""The input of a stack."""

INPUTS: dict[str, Callable[..., Hidden]] = {"tokens": embed_tokens, "patches": embed_patches, "frames": embed_frames}
"""The function for each `config.input_kind(stack)`."""


def embed(
    stack: str,
    config: TransformerConfig,
    parameters: Parameters,
    tokens: Source,
    positions: Int[Array, "#batch length"],
    is_token: IsToken,
    token_types: TokenIds | None = None,
    tap: Tap = identity,
) -> Hidden:
    """Return the sum of the input's embedding and, if configured, the embeddings of token types and positions.

    Args:
        parameters: The parameters of the stack.
        positions: The positions of `tokens` in their sequences.
        is_token: True where a token is not padding, for all positions up to the last.
    """
    config, kind = config.for_stack(stack), config.input_kind(stack)
    check_length(config, positions.shape[1])
    x = INPUTS[kind](config, parameters, tokens, tap)
    if config.token_scale != 1:
        x = x * x.dtype.type(config.token_scale)
    if token_types is not None:
        x = x + parameters["token_type_embedding"]["weight"][token_types]
    if config.positions == "learned":
        return x + parameters["position_embedding"]["weight"][position_ids(config, is_token, positions)]
    if config.positions == "sinusoidal":
        options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        return x + sinusoidal_positions(is_token.shape[1], *options).astype(x.dtype)[positions]
    return x
