"""Tolerances (budgets): `factor` × the reference's own error, plus `floor` × ulp of the largest expected value. The
floor matters only if a computation is so short that the reference makes no error."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance.storage.mapped import Mapped


@dataclass(frozen=True)
class BudgetRule:
    factor: float
    floor: float
    provenance: str

    def budget(self, noise: float, ulp: float, scale: float) -> float:
        """Return the tolerance for the reference's error `noise` and the largest expected value `scale`."""
        return float(self.factor * noise + self.floor * ulp * scale)


class Threshold(float):
    provenance: str

    def __new__(cls, value: float, provenance: str) -> Threshold:
        made = super().__new__(cls, value)
        made.provenance = provenance
        return made


class Count(int):
    provenance: str

    def __new__(cls, value: int, provenance: str) -> Count:
        made = super().__new__(cls, value)
        made.provenance = provenance
        return made


FITTED_WIDTH = Threshold(
    1e-4,
    "scores were multiplied by 1/√width for five widths, in up to seven models with three probes each. If a factor was "
    "fitted to the float32 results, the width computed from the factor has a relative error of at most 1.8e-5",
)
"""The largest relative error of an integer width for which reports write a fitted scale as 1/√width."""

MEASURED = (
    "Measured by python -m transparity_conformance.oracle.calibrate, which permutes the terms of every sum. At 15,253 "
    "taps, the new order changes a value by at most 1.42 × the reference's rounding error in float32. In float64, the "
    "change is at most 2.36 ×. At 99 % of the taps, the change is below 0.62 ×. The tolerance allows 4 × this error."
)
ROUNDED = (
    "Half precisions use the constants of float32, because a port must sum in float32 and round the results. If "
    "every sum is rounded to float16, the error is below 0.16 × the reference's error at 99 % of the taps. If a "
    "variance underflows, the error grows by a factor of 10 to 1000."
)

RULES = {
    "float64": BudgetRule(4, 4, MEASURED),
    "float32": BudgetRule(4, 4, MEASURED),
    "bfloat16": BudgetRule(4, 4, ROUNDED),
    "float16": BudgetRule(4, 4, ROUNDED),
}

NEIGHBOURS = 3
"""The number of runs, on slightly changed inputs, in which the reference's error is measured; a single error may be
small by chance."""

NEIGHBOURS_OF_HOT = 16
"""The number of points for the probe `hot`, in which a few elements determine the error. With 144 models, a right
program's error was up to 4.5 times the error at three points. With 8, 16 and 32 points, this ratio was at most 4.3, 2.3
and 1.7."""

NEIGHBOURS_OF_RECURRENT = 8
"""The number of points for a model with a recurrence. The norm after a state's output near zero enlarges the error. In
40 recurrent models, a right program's error was up to 3.4 times the error at three points. With 1, 8 and 16 points,
this ratio was at most 4.7, 1.2 and 1.0."""

NEIGHBOURS_OF_DRAWN = 8
"""The number of points for a randomly drawn configuration, whose errors vary because it has few features."""

POSITIONS_OF_DRAWN = 64
"""The smallest product of positions and points; shorter inputs are measured at more points (slightly changed
inputs)."""


def neighbours_of_drawn(inputs: Mapping[str, np.ndarray]) -> int:
    fewest = min(tokens.size for tokens in inputs.values())
    return max(NEIGHBOURS_OF_DRAWN, -(-POSITIONS_OF_DRAWN // fewest))


@functools.cache
def epsilon(dtype: str) -> float:
    """Return the distance from 1 to the next larger number."""
    import ml_dtypes  # a late import, so that the command line starts faster

    return float(ml_dtypes.finfo(dtype).eps)


def _bfloat16() -> Any:
    import ml_dtypes  # a late import, as above

    return ml_dtypes.bfloat16


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """Round to `dtype`. Results in half precision have the dtype float32, in which NumPy can compute."""
    if value.dtype.kind != "f":
        return value
    if dtype == "float64":
        return value.astype(dtype, copy=False)
    with np.errstate(over="ignore"):  # an overflow gives infinity, which exceeds each tolerance
        if dtype == "float32":
            return value.astype(dtype, copy=False)
        return value.astype(np.float16 if dtype == "float16" else _bfloat16()).astype(np.float32)


def rounded_to(value: np.ndarray, kind: str) -> np.ndarray:
    """Round to float32, bfloat16, float16 or TF32 (10 bits after the point), without changing the dtype."""
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
