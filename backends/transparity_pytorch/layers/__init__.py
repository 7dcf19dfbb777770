"""Layers of a stack."""

from transparity_pytorch.layers.parallel import ParallelLayer
from transparity_pytorch.layers.sequential import Layer

LAYERS: dict[str, type[Layer]] = {"sequential": Layer, "parallel": ParallelLayer, "parallel-one-norm": ParallelLayer}
"""The class for each value of `config.branches`."""
