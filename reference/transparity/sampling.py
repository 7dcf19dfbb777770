"""Settings for sampling tokens from logits, the same for every column."""

from __future__ import annotations

from dataclasses import dataclass

from transparity.errors import ConfigError, is_finite, is_number, is_whole, shown

COLDEST = 1e-30
"""The lowest temperature for float32 logits; a lower temperature would sample the same tokens."""


@dataclass(frozen=True)
class Sampling:
    """Settings for sampling: the temperature is applied first, then top-k, then top-p.

    Among equally likely tokens, the token with the lower id ranks first. An invalid number raises `ConfigError`.
    """

    temperature: float = 1.0
    """Number that divides the logits; below 1, likely tokens become more likely."""
    top_k: int | None = None
    """Keep only this many of the most likely tokens. None keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of the most likely remaining tokens with at least this total probability (Holtzman et al.
    2020). 1 keeps all."""

    def __post_init__(self) -> None:
        if not (is_finite(self.temperature) and self.temperature >= COLDEST):
            raise ConfigError(
                f"temperature is {shown(self.temperature)}; it should be a finite number, at least {COLDEST:g}."
            )
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ConfigError(f"top_p is {shown(self.top_p)}; it should be above 0 and at most 1.")
        if self.top_k is not None and not is_whole(self.top_k, 1):
            raise ConfigError(f"top_k is {shown(self.top_k)}; it should be a whole number, at least 1.")
