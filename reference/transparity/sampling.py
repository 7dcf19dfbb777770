"""Settings for drawing tokens from logits, the same for every column."""

from __future__ import annotations

from dataclasses import dataclass

from transparity.errors import ConfigError, is_finite, is_number, is_whole, shown

COLDEST = 1e-30
"""The lowest temperature that float32 can divide by; a lower one would draw the same token."""


@dataclass(frozen=True)
class Sampling:
    """Temperature, then top-k, then top-p, applied in this order.

    Among equally likely tokens, the lower one ranks first. Raises `ConfigError` for a number out of its range.
    """

    temperature: float = 1.0
    """Divisor of the logits: below 1, likely tokens become likelier."""
    top_k: int | None = None
    """The number of likeliest tokens that are kept; None: all."""
    top_p: float = 1.0
    """Of the tokens that `top_k` kept, keep the fewest likeliest with this probability in total (Holtzman et al. 2020):
    at least one; with 1, all."""

    def __post_init__(self) -> None:
        if not (is_finite(self.temperature) and self.temperature >= COLDEST):
            raise ConfigError(
                f"temperature is {shown(self.temperature)}; it should be a finite number, at least {COLDEST:g}."
            )
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p is {shown(self.top_p)}; it should be above 0 and at most 1.")
        if self.top_k is not None and not is_whole(self.top_k, 1):
            raise ConfigError(f"top_k is {shown(self.top_k)}; it should be a whole number, at least 1.")
