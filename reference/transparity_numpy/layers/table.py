"""The table of layers: each kind of layer has a file in this folder, and a row here."""

from __future__ import annotations

from transparity_numpy.layers.layer import layer
from transparity_numpy.layers.parallel import parallel_layer

LAYERS = {"sequential": layer, "parallel": parallel_layer, "parallel-one-norm": parallel_layer}
"""The function for each `config.branches`."""
