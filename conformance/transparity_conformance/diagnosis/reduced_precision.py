"""Products of rounded factors, as tensor cores make them: TF32 and half precision factors, summed in float32.

The rounding is put into the reference as a fault would be: arrays that round what is multiplied with them go through
the reference's own code in the place of its parameters and activations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, Hypothesis, WalkState
from transparity_conformance.diagnosis.faults.residuals_and_activations import rounded_to
from transparity_conformance.oracle.oracle import Arrays

KINDS = {"TF32": "tf32", "bfloat16": "bfloat16", "float16": "float16"}

TYPICAL, WORST = 0.5, 0.75
"""What may be left of a difference, on most probes and on any: a factor beside a tie may be rounded the other way, and
with it all that comes of it. Another rounding, or a fault, leaves all of the difference or makes it several times as
large."""

FURTHEST = 4.0
"""How far any number may be off, in the largest differences that the rounding makes."""

PARAMETERS = "parameters"


class Factors(np.ndarray):
    """An array whose matrix products round both factors first."""

    kind = "tf32"

    def __array_finalize__(self, source: Any) -> None:
        self.kind = getattr(source, "kind", self.kind)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        plain = [value.view(np.ndarray) if isinstance(value, Factors) else value for value in inputs]
        if ufunc is np.matmul:
            plain = [rounded_to(value, self.kind) for value in plain]
        if named.get("out"):
            named["out"] = tuple(np.asarray(value) for value in named["out"])
        result = getattr(ufunc, method)(*plain, **named)
        return factors(self.kind, result) if isinstance(result, np.ndarray) else result


def factors(kind: str, value: np.ndarray) -> Factors:
    """`value` as an array whose products round to `kind`."""
    made = value.view(Factors)
    made.kind = kind
    return made


def products_of(taps: list[str]) -> Iterator[Hypothesis]:
    """Every kind of rounded products, made in the whole model."""
    for name, kind in KINDS.items():
        says = f"rounding of the factors of matrix products to {name}"
        made = Fault(
            "low-precision", f"{name} products", says, alter=partial(_alter, kind), downstream=partial(_onward, kind)
        )
        yield Hypothesis(made, (PARAMETERS, *taps))


def left_with(actual: np.ndarray, ours: np.ndarray, rounded: np.ndarray) -> float:
    """How much of a typical number's difference from `ours` is left beside `rounded`; infinitely much if one is further
    off than rounding takes it. What neither changes, such as a weight of zero, is not asked."""
    ours, rounded = np.asarray(ours), np.asarray(rounded)
    moved = (actual != ours) | (rounded != ours)
    with np.errstate(all="ignore"):
        before, after = np.abs(actual - ours)[moved], np.abs(actual - rounded)[moved]
        possible = after.max(initial=0.0) <= FURTHEST * np.abs(rounded - ours).max(initial=0.0)
        return float(np.median(after) / np.median(before)) if possible else math.inf


def _alter(kind: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    return {name: factors(kind, value) for name, value in parameters.items()} if site == PARAMETERS else {}


def _onward(kind: str, state: WalkState, name: str, value: np.ndarray) -> Factors:
    return factors(kind, value)
