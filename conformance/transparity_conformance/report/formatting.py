"""Numbers as text: shares of a budget, counts, and the heights and colors of bars and cells; templates of pages."""

from __future__ import annotations

import math
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

DECADES = 6
"""The decades below the largest error in which a bar has a height."""

PALEST = 1e-3
"""The share below which all cells look the same; from here to 1 the color follows the logarithm."""


def percent(share: float) -> str:
    """A share of at most 1 of a budget, to two significant digits."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{_two_digits(100 * share)} %"


def times(share: float) -> str:
    """A share above 1 of a budget, never written as 1."""
    if not math.isfinite(share):
        return "∞"
    if share < 1.05:
        return ">1×"
    return f"{share:.0e}×".replace("e+0", "e").replace("e+", "e") if share >= 9999.5 else _two_digits(share) + "×"


def _two_digits(number: float) -> str:
    return f"{number:#.2g}" if 0 < number < 9.95 else f"{number:.0f}"


def format_share(share: float) -> str:
    """`43 %`, or `3.2×` if it exceeds 1."""
    return percent(share) if share <= 1 else times(share)


def scientific(number: float) -> str:
    """Three significant digits, with an exponent where the number is small or large."""
    if not math.isfinite(number):
        return "∞"
    return f"{number:.2e}" if number and not 0.01 <= abs(number) < 1000 else f"{number:.3g}"


def count(number: int, noun: str) -> str:
    """`1 claim`, `1,200 claims`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def height(error: float, largest: float) -> float:
    """0 to 1 on a logarithmic scale, over `DECADES` below the largest."""
    if not math.isfinite(error):
        return 1.0
    if error <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 + math.log10(error / largest) / DECADES)


def heat(share: float) -> float:
    """0 (negligible error) to 1 (the whole budget), on a logarithmic scale of the share."""
    if share <= PALEST:
        return 0.0
    return round(min(1.0, 1 - math.log(share) / math.log(PALEST)), 3)


def template(name: str) -> jinja2.Template:
    """A page to be filled in; everything put into it is escaped."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": format_share, "scientific": scientific}
    text = resources.files("transparity_conformance.report").joinpath("templates", name).read_text(encoding="utf-8")
    return environment.from_string(text)
