"""Numeric fields of a configuration: their ranges, and the values that random configurations and audits try."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """A range of numbers, as a function and as text for error messages."""

    holds: Callable[[float], bool]
    text: str


POSITIVE = Range(lambda x: 0 < x < math.inf, "a finite number > 0")
NOT_NEGATIVE = Range(lambda x: 0 <= x < math.inf, "a finite number ≥ 0")
SHARE = Range(lambda x: 0 <= x <= 1, "between 0 and 1")
PROBABILITY = Range(lambda x: 0 <= x < 1, "at least 0 and less than 1")
NOT_POSITIVE = Range(lambda x: x <= 0, "0 or less (−inf allowed)")

LARGEST = 2**31 - 1
COUNT = Range(lambda x: 1 <= x <= LARGEST, f"between 1 and {LARGEST}")
"""The default range of whole numbers."""


def number(default: float | None, range: Range, *tried: float | None, usual: tuple[float, ...] = ()) -> Any:
    """Return a dataclass field for a number within `range`.

    Args:
        default: The default value of the field.
        range: The valid numbers.
        tried: The values that random configurations and audits try, the simplest first.
        usual: The values in published models and ports, the most frequent first.
    """
    return dataclasses.field(default=default, metadata={"range": range, "tried": tried, "usual": usual})


def numbers(range: Range) -> Any:
    """Return a dataclass field for a tuple of numbers within `range`; the default is empty."""
    return dataclasses.field(default=(), metadata={"range": range})


def whole(default: int | None, *tried: int | None, least: int = 1, most: int = LARGEST) -> Any:
    """Return a dataclass field for a whole number from `least` to `most`; `number` explains `tried`."""
    limits = Range(lambda x: least <= x <= most, f"between {least} and {most}")
    return dataclasses.field(default=default, metadata={"range": limits, "tried": tried})
