"""The outputs for each position: logits (Vaswani et al. 2017, §3.4) or hidden states."""

from __future__ import annotations

from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.arithmetic.precision import apply_softcap
from transparity_numpy.norms.norm import norm
from transparity_numpy.shapes import Parameters, Vectors


def transform_for_head(config: TransformerConfig, parameters: Parameters, x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code)."""
    y = ACTIVATIONS[config.activation](linear(parameters["head_transform"], x))
    return norm(config, parameters["head_norm"], y)


def logits(config: TransformerConfig, parameters: Parameters, x: Vectors) -> Inexact[Array, "*batch vocab"]:
    """softcap(x Wᵀ + b), where W of a tied head is the table of token embeddings (Press and Wolf 2017)."""
    x = transform_for_head(config, parameters, x) if config.head_transform else x
    x = x if config.head_input_scale == 1 else x * x.dtype.type(config.head_input_scale)
    weight = parameters[config.stacks[-1]]["token_embedding"] if config.has_tied_head else {}
    y = linear(parameters.get("head", {}) | weight, x)
    return y if config.final_softcap is None else apply_softcap(y, config.final_softcap)


def hidden(config: TransformerConfig, parameters: Parameters, x: Vectors) -> Vectors:
    return x
