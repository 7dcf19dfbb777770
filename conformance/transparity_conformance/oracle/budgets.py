"""Budgets: the largest error that rounding explains. Factors are data, each with its provenance.

The tolerance is `factor` × the error of the reference in that precision, plus `floor` ulps of the largest expected
value. The floor covers computations so short that the reference makes no error.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.limits.mapped import Mapped


@dataclass(frozen=True)
class BudgetRule:
    """The budget of one precision."""

    factor: float
    floor: float
    provenance: str

    def budget(self, noise: float, ulp: float, scale: float) -> float:
        """Return the budget where the reference errs by `noise` and the largest expected value is `scale`."""
        return float(self.factor * noise + self.floor * ulp * scale)


MEASURED = (
    "Measured by python -m transparity_conformance.oracle.calibrate, with features permuted so that sums have another "
    "order. At 13,651 taps, the reference errs by at most 1.89 × the oracle's error in float32 and 1.59 × in float64. "
    "The error is below 0.69 × at 99 % of the taps. Other drawn configurations reach 2.70 ×, to which half is added."
)
ROUNDED = (
    "As for float32, from which it is rounded. If every sum is rounded to float16, 99 % err by at most 0.16 ×, but a "
    "variance that underflows errs by tens or hundreds. A port must therefore widen its sums, as every kernel does."
)

RULES = {
    "float64": BudgetRule(4, 4, MEASURED),
    "float32": BudgetRule(4, 4, MEASURED),
    "bfloat16": BudgetRule(4, 4, ROUNDED),
    "float16": BudgetRule(4, 4, ROUNDED),
}

NEIGHBOURS = 3
"""The points at which the reference's error is measured; a single one may be small by chance."""

NEIGHBOURS_OF_HOT = 16
"""The number of points for scores so large that one key has almost all of the weight.

There a few numbers determine the error, so chance matters more. Over 144 such models (12 weights of each preset), a
right program errs by up to 4.5 × the error at three points. At 8, 16 and 32 points it is 4.3 ×, 2.3 × and 1.7 ×.
"""

NEIGHBOURS_OF_RECURRENT = 8
"""The number of points for a model with a recurrence.

A token's output from the state may be near zero, and a norm then enlarges it. Over 40 such models, a right program errs
by up to 3.4 × the error at three points, 1.2 × at 8 and 1.0 × at 16. At the point itself it is 4.7 ×.
"""

NEIGHBOURS_OF_DRAWN = 8
"""The number of points for drawn configurations, whose few features make chance matter more."""

POSITIONS_OF_DRAWN = 64
"""The fewest positions to measure over; a sequence of one token needs more points than a long one."""


def neighbours_of_drawn(inputs: Mapping[str, np.ndarray]) -> int:
    """Return the number of points at which the error of a drawn configuration is measured."""
    fewest = min(tokens.size for tokens in inputs.values())
    return max(NEIGHBOURS_OF_DRAWN, -(-POSITIONS_OF_DRAWN // fewest))


@functools.cache
def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next number of `dtype`."""
    import ml_dtypes  # imported late, so that the command line starts without it

    return float(ml_dtypes.finfo(dtype).eps)


def _bfloat16() -> Any:
    import ml_dtypes  # imported late, as above

    return ml_dtypes.bfloat16


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """Round `value` to `dtype`, in a dtype that NumPy can compute with."""
    if value.dtype.kind != "f":
        return value
    if dtype == "float64":
        return value.astype(dtype, copy=False)
    with np.errstate(over="ignore"):  # a number beyond the range is infinite, and no budget covers it
        if dtype == "float32":
            return value.astype(dtype, copy=False)
        return value.astype(np.float16 if dtype == "float16" else _bfloat16()).astype(np.float32)


def rounded_to(value: np.ndarray, kind: str) -> np.ndarray:
    """Round `value` to float32, bfloat16, float16 or TF32 (10 bits after the point), in its own dtype."""
    if isinstance(value, Mapped):
        in_file: Any = value.changed(functools.partial(rounded_to, kind=kind))
        return in_file
    if kind == "tf32":
        bits = value.astype(np.float32).view(np.uint32)
        bits = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
        return bits.view(np.float32).astype(value.dtype)
    return value.astype(_bfloat16() if kind == "bfloat16" else kind).astype(value.dtype)


EVERY = ("float64", "float32", "bfloat16", "float16")
WIDE = ("float64", "float32")
HALF = ("bfloat16", "float16")
