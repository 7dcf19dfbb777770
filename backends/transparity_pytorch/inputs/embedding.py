"""The embedding: the input of a stack as vectors, with types and positions. A new input is a file and a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_pytorch.inputs.frames import embed_frames, frame_parts
from transparity_pytorch.inputs.patches import embed_patches, patch_parts
from transparity_pytorch.inputs.tokens import embed_tokens, token_parts
from transparity_pytorch.positions.learned import position_ids
from transparity_pytorch.positions.sinusoidal import sinusoidal_positions
from transparity_pytorch.shapes import Frames, Hidden, IsToken, Pixels, TokenIds

Source = TokenIds | Pixels | Frames
"""The input of a stack."""

INPUTS: dict[str, tuple[Callable[..., dict[str, nn.Module]], Callable[..., Hidden]]] = {
    "tokens": (token_parts, embed_tokens),
    "patches": (patch_parts, embed_patches),
    "frames": (frame_parts, embed_frames),
}
"""The modules and the function for each `config.input_kind(stack)`."""


def embedding_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """The modules of a stack that `embed` uses."""
    parts, _ = INPUTS[config.input_kind(stack)]
    modules, config = parts(config, stack), config.for_stack(stack)
    if config.num_token_types and stack == "encoder":
        modules["token_type_embedding"] = nn.Embedding(config.num_token_types, config.embed_dim)
    if config.positions == "learned":
        modules["position_embedding"] = nn.Embedding(config.num_positions, config.embed_dim)
    return modules


def embed(
    stack: str,
    config: TransformerConfig,
    module: Any,
    tokens: Source,
    positions: Int[Tensor, "#batch length"],
    is_token: IsToken,
    token_types: TokenIds | None = None,
    tap: Tap = identity,
) -> Hidden:
    """Sum of the embeddings of tokens, patches or frames and, if configured, of types and positions.

    Args:
        module: The stack.
        positions: Positions of the tokens, below `is_token.shape[1]`.
        is_token: True for tokens that are not padding, among all up to the last position.
    """
    (_, function), config = INPUTS[config.input_kind(stack)], config.for_stack(stack)
    check_length(config, positions.shape[1])
    x = function(config, module, tokens, tap)
    if config.token_scale != 1:
        x = x * config.token_scale
    if token_types is not None:
        x = x + module.token_type_embedding(token_types)
    if config.positions == "learned":
        return x + module.position_embedding(position_ids(config, is_token, positions))
    if config.positions == "sinusoidal":
        options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        return x + sinusoidal_positions(is_token.shape[1], *options, tokens.device).to(x.dtype)[positions]
    return x
