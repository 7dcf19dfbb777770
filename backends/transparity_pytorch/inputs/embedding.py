"""The embedding of a stack's input, with token types and positions. Each kind of input has a row of `INPUTS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_pytorch.inputs.frames import embed_frames, frame_parts
from transparity_pytorch.inputs.patches import embed_patches, patch_parts
from transparity_pytorch.positions import ADDED
from transparity_pytorch.shapes import Hidden, Source, TokenIds
from transparity_pytorch.state.context import Context


def token_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return the embedding table; if both stacks share a table, the model later replaces the decoder's table."""
    return {"token_embedding": nn.Embedding(config.stack_vocab_size(stack), config.embed_dim)}


def embed_tokens(config: TransformerConfig, module: Any, tokens: TokenIds, tap: Tap = identity) -> Hidden:
    return module.token_embedding(tokens)


INPUTS: dict[str, tuple[Callable[..., dict[str, nn.Module]], Callable[..., Hidden]]] = {
    "tokens": (token_parts, embed_tokens),
    "patches": (patch_parts, embed_patches),
    "frames": (frame_parts, embed_frames),
}
"""For each `config.input_kinds[stack]`, the function that makes its modules, and the function that applies them."""


def embedding_parts(config: TransformerConfig, stack: str) -> dict[str, nn.Module]:
    """Return the modules of a stack that `embed` uses."""
    parts, _ = INPUTS[config.input_kinds[stack]]
    modules, config = parts(config, stack), config.for_stack(stack)
    if config.num_token_types and stack == "encoder":
        modules["token_type_embedding"] = nn.Embedding(config.num_token_types, config.embed_dim)
    if config.positions == "learned":
        modules["position_embedding"] = nn.Embedding(config.num_positions, config.embed_dim)
    return modules


def embed(stack: str, module: Any, tokens: Source, context: Context) -> Hidden:
    """Return the sum of the input's embedding and, if configured, the embeddings of token types and positions."""
    (_, function), config = INPUTS[module.config.input_kinds[stack]], module.config.for_stack(stack)
    check_length(config, context.positions.shape[1])
    x = function(config, module, tokens, context.tap)
    x = x if config.token_scale == 1 else x * config.token_scale
    x = x if context.token_types is None else x + module.token_type_embedding(context.token_types)
    add = ADDED.get(config.positions)
    return x if add is None else add(config, module, x, context)
