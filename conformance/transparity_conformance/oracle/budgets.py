"""Budgets: the largest error that rounding explains. Factors are data, each with its provenance.

A comparison may differ by `factor` × the error that the reference itself makes in that precision, plus `floor` ulps of
the largest expected value, for what is so short a computation that the reference made no error at all.
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
        """The budget where the reference errs by `noise` and the largest expected value is `scale`."""
        return float(self.factor * noise + self.floor * ulp * scale)


MEASURED = (
    "python -m transparity_conformance.oracle.calibrate: the reference with its features permuted, so that all is "
    "summed in another order, errs at worst 1.89 × what the oracle measured beside it (float32; float64 1.59 ×; 13,651 "
    "taps each, 99 % of them below 0.69 ×; 2.70 × over other drawn configurations, before there were as many fields); "
    "half as much again"
)
ROUNDED = (
    "as for float32, from which it is rounded; float16 in which every sum is rounded errs by 0.16 × at 99 %, and, "
    "where a variance underflows, by tens or hundreds: a port has to widen what it sums, as every kernel does"
)

RULES = {
    "float64": BudgetRule(4, 4, MEASURED),
    "float32": BudgetRule(4, 4, MEASURED),
    "bfloat16": BudgetRule(4, 4, ROUNDED),
    "float16": BudgetRule(4, 4, ROUNDED),
}

NEIGHBOURS = 3
"""The points at which the reference's error is measured: one alone may be small by luck."""

NEIGHBOURS_OF_HOT = 16
"""The same where scores are so large that one key has nearly all of the weight: a few numbers decide the error, which
is a matter of luck. Over 144 such models (12 weights of each preset), a right program errs by up to 4.5 × what three
points show, 4.3 × what 8 show, 2.3 × what 16 show, 1.7 × what 32 show."""

NEIGHBOURS_OF_RECURRENT = 8
"""The same of a model with a recurrence: what a token reads of the state may be near zero, which a norm makes large
again. Over 40 such models a right program errs by up to 3.4 × what three points show, 1.2 × what 8 show, 1.0 × what 16
show, and by 4.7 × what the point itself shows."""

NEIGHBOURS_OF_DRAWN = 8
"""The same for drawn configurations, which may have so few features that luck is likelier."""

POSITIONS_OF_DRAWN = 64
"""The fewest positions to measure over: a sequence of one token needs more points than a long one."""


def neighbours_of_drawn(inputs: Mapping[str, np.ndarray]) -> int:
    """The points at which the error of a drawn configuration is measured."""
    fewest = min(tokens.size for tokens in inputs.values())
    return max(NEIGHBOURS_OF_DRAWN, -(-POSITIONS_OF_DRAWN // fewest))


@functools.cache
def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of `dtype`."""
    import ml_dtypes  # imported late, so that the command line starts without it

    return float(ml_dtypes.finfo(dtype).eps)


def _bfloat16() -> Any:
    import ml_dtypes  # imported late, as above

    return ml_dtypes.bfloat16


@np.errstate(over="ignore")  # a number beyond the range is infinite, and no budget covers it
def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """`value` rounded to `dtype`, held in a dtype that NumPy can compute with."""
    if value.dtype.kind != "f":
        return value
    if dtype in ("float64", "float32"):
        return value.astype(dtype, copy=False)
    return value.astype(np.float16 if dtype == "float16" else _bfloat16()).astype(np.float32)


def rounded_to(value: np.ndarray, kind: str) -> np.ndarray:
    """`value` rounded to float32, bfloat16, float16 or TF32 (10 bits behind the point), kept in its own dtype."""
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
