"""transparity: a transformer in three frameworks that provably agree. This package is its specification.

The contract: `config`, `presets`, `parameters`, `inputs`, `taps`, `training`, `sampling`, `backend`, `errors`, `axes`.
The NumPy column: `masks`, `embeddings`, `positions`, `normalization`, `attention`, `feed_forward`, `layers`, `head`,
`precision`, `transformer`, `loss`, `dropout`, `rounding`, `differentiation`, `optimization`, `cache`, `decoding`,
`generation`, `beams`, with `functional` for what frameworks bring along, and `port`, the door.
"""

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity.parameters import (
    check_parameters,
    initialize_parameters,
    load_parameters,
    parameter_shapes,
    save_parameters,
)
from transparity.presets import PRESETS, departures, preset
from transparity.taps import identity, recording, scoped, tap_shapes

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "TransformerConfig",
    "TransparityError",
    "check_parameters",
    "departures",
    "identity",
    "initialize_parameters",
    "load_parameters",
    "parameter_shapes",
    "preset",
    "recording",
    "save_parameters",
    "scoped",
    "tap_shapes",
]
