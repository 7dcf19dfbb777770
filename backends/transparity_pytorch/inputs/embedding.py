"""The embedding of a stack's input, with token types and positions."""

from __future__ import annotations

from typing import Any

from transparity.inputs import check_length
from transparity_pytorch.inputs import INPUTS
from transparity_pytorch.positions import ADDED
from transparity_pytorch.shapes import Hidden, Source
from transparity_pytorch.state.context import Context


def embed(stack: str, module: Any, tokens: Source, context: Context) -> Hidden:
    """Embed the input, and add the embeddings of token types and positions if the model has them."""
    (_, function), config = INPUTS[module.config.input_kinds[stack]], module.config.for_stack(stack)
    check_length(config, context.positions.shape[1])
    x = function(config, module, tokens, context.tap)
    x = x if config.token_scale == 1 else x * config.token_scale
    x = x if context.token_types is None else x + module.token_type_embedding(context.token_types)
    add = ADDED.get(config.positions)
    return x if add is None else add(config, module, x, context)
