"""The structure of a model without its arrays, by which JAX finds compiled programs."""

from __future__ import annotations

import functools

import jax
from flax import nnx

from transparity.config import TransformerConfig
from transparity_flax.transformer import Transformer

Weights = tuple[jax.Array, ...]
"""The arrays of a model, in an order of Flax's. JAX takes a tuple apart by itself, and a state of Flax in Python."""


class ModelStructure:
    """A model without its arrays; a static argument of jitted functions, which is hashed and compared by its identity.

    At every call, JAX looks up the program by its static arguments, and hashing or comparing Flax's graph takes
    milliseconds for twelve layers.
    """

    def __init__(self, graph: nnx.GraphDef[Transformer], tree: jax.tree_util.PyTreeDef) -> None:
        self.graph, self.tree = graph, tree

    def model(self, weights: Weights, *, copy: bool = False) -> Transformer:
        """Return the model with these arrays; a copy may be changed while it is traced."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, weights), copy=copy)


_structure = functools.cache(ModelStructure)
"""One structure for all equal graphs, so that models with the same configuration share compiled programs."""

SplitModel = tuple[TransformerConfig, ModelStructure, Weights]
"""A model split once instead of at every token, with its configuration."""


def split(model: Transformer) -> tuple[ModelStructure, Weights]:
    """Return the structure and the arrays of a model."""
    graph, state = nnx.split(model)
    weights, tree = jax.tree.flatten(state)
    return _structure(graph, tree), tuple(weights)
