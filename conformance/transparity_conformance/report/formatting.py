"""Format shares of a budget and other numbers as text and JSON, compute heights of bars, and load page templates."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2

DECADES = 6
"""The powers of ten that bars show: an error 10⁶ times smaller than the largest has height 0."""

PALEST = 1e-3
"""The largest share with the palest color in a heat map."""


def format_share(share: float) -> str:
    """Format a share up to 1 as a percentage, and a larger one as a multiple such as `3.2×`, but never as `1×`."""
    if share <= 1:
        return "<0.1 %" if 0 < share < 0.001 else f"{_two_digits(100 * share)} %"
    if not math.isfinite(share):
        return "∞"
    if share < 1.05:
        return ">1×"
    return f"{share:.0e}×".replace("e+0", "e").replace("e+", "e") if share >= 9999.5 else _two_digits(share) + "×"


def _two_digits(number: float) -> str:
    return f"{number:#.2g}" if 0 < number < 9.95 else f"{number:.0f}"


def scientific(number: float) -> str:
    """Format three significant digits, with an exponent for small and large numbers."""
    if not math.isfinite(number):
        return "∞"
    return f"{number:.2e}" if number and not 0.01 <= abs(number) < 1000 else f"{number:.3g}"


def plain(value: Any) -> Any:
    """Convert dataclasses, containers and numbers to JSON values; NaN and infinity become `"inf"`."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "inf"
    if value is None or isinstance(value, str | bool | int):
        return value
    raise TypeError(f"{value!r} cannot be written as JSON")


def count(number: int, noun: str) -> str:
    """Return `1 claim` or `1,200 claims`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def some(names: Sequence[str], most: int = 1, joint: str = ", ") -> str:
    """Return `a, b and 3 more`."""
    more = " and " if joint == ", " else f"{joint}and "
    return joint.join(names[:most]) + (f"{more}{len(names) - most} more" if names[most:] else "")


def ranges(numbers: Iterable[int], dash: str = "–") -> list[str]:
    """Return `["1–3", "5"]` for 1, 2, 3, 5."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}{dash}{run[-1]}" for run in runs]


def height(error: float, largest: float) -> float:
    """Return a bar's height from 0 to 1, on a logarithmic scale that ends at the largest error."""
    if not math.isfinite(error):
        return 1.0
    if error <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 + math.log10(error / largest) / DECADES)


def heat(share: float) -> float:
    """Return the share on a logarithmic scale, from 0 (at most `PALEST`) to 1 (the whole budget or more)."""
    if share <= PALEST:
        return 0.0
    return round(min(1.0, 1 - math.log(share) / math.log(PALEST)), 3)


def template(name: str) -> jinja2.Template:
    """Return a page's template, which escapes all inserted text."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"share": format_share, "scientific": scientific, "heat": heat}
    text = resources.files("transparity_conformance.report").joinpath("templates", name).read_text(encoding="utf-8")
    return environment.from_string(text)
