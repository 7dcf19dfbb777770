"""The embedding of a stack's input, with token types and positions."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.inputs import check_length
from transparity_numpy.inputs import INPUTS
from transparity_numpy.positions import ADDED
from transparity_numpy.shapes import Hidden, Parameters, Source
from transparity_numpy.state.context import Context


def embed(stack: str, config: TransformerConfig, parameters: Parameters, tokens: Source, context: Context) -> Hidden:
    """Embed the input, and add the embeddings of token types and positions if the model has them."""
    config, kind = config.for_stack(stack), config.input_kinds[stack]
    check_length(config, context.positions.shape[1])
    x = INPUTS[kind](config, parameters, tokens, context.tap)
    x = x if config.token_scale == 1 else x * x.dtype.type(config.token_scale)
    if context.token_types is not None:
        x = x + parameters["token_type_embedding"]["weight"][context.token_types]
    add = ADDED.get(config.positions)
    return x if add is None else add(config, parameters, x, context)
