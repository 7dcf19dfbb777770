"""transparity: one transformer in NumPy, PyTorch and JAX. This package is the contract that the three columns share.

The model: `config`, `presets`, `parameters`, `taps`, `axes`. The inputs of the model: `inputs`, `sampling`, `training`,
`errors`. The interfaces are in `protocol`; `checked` has base classes for their implementations."""

from __future__ import annotations

import contextlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

    __version__: str

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


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, because importing all names would delay `--help`."""
    if name == "__version__":
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version("transparity")
    for home in ("config", "errors", "taps", "parameters", "presets") if name in __all__ else ():
        if hasattr(module := importlib.import_module(f"{__name__}.{home}"), name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
