"""Models split into their arrays and their structure; JAX looks up compiled programs by the structure."""

from __future__ import annotations

import functools

import jax
from flax import nnx

from transparity.config import TransformerConfig
from transparity_flax.transformer import Transformer

Weights = tuple[jax.Array, ...]
"""The arrays of a model, in Flax's order, as a tuple, which JAX flattens faster than a state of Flax."""


class ModelStructure:
    """A model without its arrays: a static argument of jitted functions, which JAX hashes and compares by identity.

    If JAX hashed the graph of a model with twelve layers instead, each call would take milliseconds longer.
    """

    def __init__(self, graph: nnx.GraphDef[Transformer], tree: jax.tree_util.PyTreeDef) -> None:
        self.graph, self.tree = graph, tree

    def model(self, weights: Weights, *, copy: bool = False) -> Transformer:
        """Return the model with `weights`; with `copy`, a function that JAX traces may change the returned model."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights), copy=copy)


_structure = functools.cache(ModelStructure)
"""Return the same structure for equal graphs, so that models with equal configurations share compiled programs."""

SplitModel = tuple[TransformerConfig, ModelStructure, Weights]
"""The configuration, structure and arrays of a model; a model is split once, not at every token."""


def split(model: Transformer) -> tuple[ModelStructure, Weights]:
    """Return the structure and the arrays of a model."""
    graph, state = nnx.split(model)
    weights, tree = jax.tree.flatten(state)
    return _structure(graph, tree), tuple(weights)
