"""The budgets: how far rounding may take a right answer. Factors are data, each with where it comes from.

A comparison may differ by `factor` × the error that the reference itself makes in that precision, plus `floor` ulps of
the largest expected value, for what is so short a computation that the reference made no error at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Rule:
    """The budget of one precision."""

    factor: float
    floor: float
    provenance: str


MEASURED = (
    "python -m transparity_conformance.calibrate: the worst error of the reference in this precision, its features "
    "permuted so that everything is summed in another order, over what the oracle expects of it"
)

RULES = {
    "float64": Rule(6, 4, MEASURED),
    "float32": Rule(6, 4, MEASURED),
    "bfloat16": Rule(6, 4, MEASURED),
    "float16": Rule(6, 4, MEASURED),
}

NEIGHBOURS = 3
"""At how many points the reference's error is measured: one alone may be small by luck."""


def epsilon(dtype: str) -> float:
    """The distance from 1 to the next number of `dtype`."""
    return float(ml_dtypes.finfo(dtype).eps)


def rounded(value: np.ndarray, dtype: str) -> np.ndarray:
    """`value` rounded to `dtype`, held in a dtype that NumPy can compute with."""
    if value.dtype.kind != "f":
        return value
    if dtype in ("float64", "float32"):
        return value.astype(dtype)
    return value.astype(dtype if dtype == "float16" else ml_dtypes.bfloat16).astype(np.float32)
