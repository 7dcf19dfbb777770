"""How tokens are drawn: what is done to the logits before, the same for every column."""

from __future__ import annotations

import math
from dataclasses import dataclass

from transparity.errors import ConfigError, is_number, is_whole, shown

COLDEST = 1e-30
"""Float32 divides by it; colder is the likeliest token all the same."""


@dataclass(frozen=True)
class Sampling:
    """From which tokens one is drawn, and how evenly. What is said here is done in this order.

    Of equally likely tokens the one with the lower number counts as the likelier. Raises `ConfigError` for a number
    out of its range.
    """

    temperature: float = 1.0
    """Logits are divided by it: below 1 the likely become likelier."""
    top_k: int | None = None
    """Only so many of the likeliest tokens may be drawn."""
    top_p: float = 1.0
    """Only the likeliest tokens may be drawn, as few as have this probability together, of what `top_k` left (Holtzman
    et al. 2020); at least one, and all with 1."""

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and COLDEST <= self.temperature < math.inf):
            raise ConfigError(
                f"temperature is {shown(self.temperature)}; it should be a finite number, at least {COLDEST:g}."
            )
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p is {shown(self.top_p)}; it should be above 0 and at most 1.")
        if self.top_k is not None and not is_whole(self.top_k, 1):
            raise ConfigError(f"top_k is {shown(self.top_k)}; it should be a whole number, at least 1.")
