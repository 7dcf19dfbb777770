"""The memory that a check needs, known from the configuration before anything is drawn."""

from __future__ import annotations

import math

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity.memory import check_fits
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes

BYTES_OF_A_PARAMETER = 4 + 4 + 8 + 4
"""Of each parameter: two draws in float32, the reference's copy in float64, and the port's own copy."""

BYTES_OF_AN_ACTIVATION = 8 + 8
"""Of each activation: the reference's in float64, and the port's, which is compared in float64."""


def check_memory(config: TransformerConfig, batch: int, **lengths: int) -> None:
    """Raise `ConfigError` if a check of `config` cannot fit in memory, by a lower bound.

    Args:
        config: the configuration, at the size at which it is probed.
        batch: the rows of a probe.
        lengths: the tokens of each input of the probe, by name.
    """
    parameters = sum(map(math.prod, parameter_shapes(config).values()))
    taps = tap_shapes(config, batch, **{name: lengths[name] for name in config.input_names})
    activations = sum(map(math.prod, taps.values()))
    needed = parameters * BYTES_OF_A_PARAMETER + activations * BYTES_OF_AN_ACTIVATION
    check_fits(f"A check of this configuration, with {parameters:,} parameters,", needed, ConfigError)
