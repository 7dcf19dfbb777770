"""Estimate how much memory a check needs, before any weights are drawn."""

from __future__ import annotations

import math

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity.limits.memory import check_fits
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes

BYTES_OF_A_PARAMETER = 32
"""In a check of the NumPy column, 7.7 million additional parameters took 254 MB."""

BYTES_OF_AN_ACTIVATION = 40
"""In a check of the NumPy column, 4.3 million additional logits took 172 MB."""


BYTES_OF_A_CACHED_FEATURE = 4 + 4
"""Float32 in the reference's cache and in the port's cache."""


def check_memory(config: TransformerConfig, batch: int, **lengths: int) -> None:
    """Raise `ConfigError` if a check needs more than the available memory. `lengths` has each input's tokens."""
    parameters = sum(map(math.prod, parameter_shapes(config).values()))
    taps = tap_shapes(config, batch, **{name: lengths[name] for name in config.input_names})
    activations = sum(map(math.prod, taps.values()))
    # only decoders have caches
    of_a_head = (config.head_dim + config.value_dim) * config.num_decoder_layers * config.has_decoder
    cached = batch * config.max_length * config.key_value_heads * of_a_head
    needed = parameters * BYTES_OF_A_PARAMETER + activations * BYTES_OF_AN_ACTIVATION
    needed += cached * BYTES_OF_A_CACHED_FEATURE
    check_fits(f"A check of this configuration with {parameters:,} parameters", needed, ConfigError)
