"""Layers of a stack."""

from transparity_numpy.layers.parallel import parallel_layer
from transparity_numpy.layers.sequential import layer

LAYERS = {"sequential": layer, "parallel": parallel_layer, "parallel-one-norm": parallel_layer}
"""The function for each value of `config.branches`."""
