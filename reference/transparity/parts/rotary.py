"""The descriptions of the scalings of rotary angles: checks of fields, and the lengths at which ports are compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transparity.errors import ConfigError
from transparity.parts.variants import Scaling

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


def _check_yarn(config: TransformerConfig) -> None:
    if config.rope_theta <= 1:
        raise ConfigError(
            f"rope_theta is {config.rope_theta:g}, but rotary_scaling 'yarn' divides by its logarithm; expected "
            "a number greater than 1."
        )


def _check_longrope(config: TransformerConfig) -> None:
    for name in ("rotary_short_factors", "rotary_long_factors"):
        count = len(getattr(config, name))
        if count != config.rotated_dim // 2:
            raise ConfigError(
                f"{name} has the length {count}, but rotary_scaling is 'longrope'; expected {config.rotated_dim // 2}, "
                "one number for each pair of rotated features."
            )


LLAMA3 = Scaling(probe_length=256)
YARN = Scaling(probe_length=64, check=_check_yarn)
LONGROPE = Scaling(probe_length=6, depends_on_length=True, check=_check_longrope)  # some probes are longer
