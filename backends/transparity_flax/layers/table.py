"""The table of layers: each kind of layer has a file in this folder, and a row here."""

from __future__ import annotations

from transparity_flax.layers.layer import Layer
from transparity_flax.layers.parallel import ParallelLayer

LAYERS: dict[str, type[Layer]] = {"sequential": Layer, "parallel": ParallelLayer, "parallel-one-norm": ParallelLayer}
"""The function for each `config.branches`."""
