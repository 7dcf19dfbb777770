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
    """A model without its arrays, as a static argument of jitted functions, hashed and compared by identity.

    Hashing Flax's graph of a model of twelve layers in every call would take milliseconds.
    """

    def __init__(self, graph: nnx.GraphDef[Transformer], tree: jax.tree_util.PyTreeDef) -> None:
        self.graph, self.tree = graph, tree

    def model(self, weights: Weights, *, copy: bool = False) -> Transformer:
        """Return the model with `weights`; set `copy` to get a model that may be changed while it is traced."""
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
