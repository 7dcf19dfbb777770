"""Find a reduced precision of weights, results or factors of matrix products that explains all differences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import PARAMETERS, whole_model
from transparity_conformance.catalogue.fault import Fault, Hypothesis, Patch
from transparity_conformance.diagnosis import thresholds
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results, logits_error, still_wrong
from transparity_conformance.diagnosis.walk import segment_budgets, walk
from transparity_conformance.oracle.budgets import HALF, rounded_to
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import Cause
from transparity_conformance.storage.mapped import Mapped


def find_rounding(results: Results, dtype: str, alone: Results | None = None) -> Cause | None:
    """Return a reduced precision that explains all differences. `alone` has results that compare only logits; it is
    given if activations were matched by value."""
    if any(result.misshapen for result in results.values()) or _is_beyond_rounding(results):
        return None
    every = _rounded_weights(results) or _rounded_arithmetic(results, dtype) or _rounded_products(results)
    return every or (_rounded_answer(results, alone, dtype) if alone else None)


def _is_beyond_rounding(results: Results) -> bool:
    """Return whether the first wrong value exceeds rounding even in bfloat16, the coarsest dtype."""
    first = next((result for result in results.values() if result.wrong), None)
    if first is None or not math.isfinite(first.errors[first.wrong[0]]):  # float16 may overflow
        return False
    tap = first.wrong[0]
    budgets = segment_budgets(first.probe, first.recorded, "bfloat16", until=tap, neighbours=1)
    return first.errors[tap] > thresholds.REMEASURED_WITHIN["bfloat16"] * budgets[tap]


def declared_by(rounding: Cause) -> str | None:
    """Return the half precision that the user should declare."""
    return next((kind for kind in HALF if kind in rounding.says), None)


def how_to_declare(rounding: Cause) -> str:
    if declared := declared_by(rounding):
        return f'declare the precision with --dtype {declared} (dtype="{declared}"), or compute in float32'
    return "switch TF32 off (in PyTorch: torch.backends.cuda.matmul.allow_tf32 = False)"


def _rounded_weights(results: Results) -> Cause | None:
    config = next(iter(results.values())).probe.config
    for fault, chosen in ((hypothesis.fault, (hypothesis,)) for hypothesis in whole_model(config)):
        if fault.id == "low-precision" and not still_wrong(results, chosen, most=0):
            return Cause("low-precision", fault.description, None, logits_error(results, chosen), 1.0)
    return None


def _rounded_arithmetic(results: Results, dtype: str) -> Cause | None:
    """Return a precision if its budgets cover all errors, and if it represents the logits and all wrong values exactly.
    Norms and residuals need not be exact, because `torch.autocast` keeps them in float32."""
    for kind in (*(("float32",) if dtype == "float64" else ()), "bfloat16", "float16"):
        if kind == dtype:
            continue
        values = (result.recorded[tap] for result in results.values() for tap in (*result.wrong, result.last))
        is_exact = all(np.array_equal(rounded_to(value, kind), value, equal_nan=True) for value in values)
        if is_exact and all(_is_within(result, kind) for result in results.values()):
            pairs = [(each.recorded[each.last], each.probe.oracle.expected[each.last]) for each in results.values()]
            largest = max(gap(*pair) for pair in pairs)
            return Cause("low-precision", f"rounding of {kind} arithmetic", None, largest, 1.0)
    return None


def _rounded_answer(results: Results, alone: Results, dtype: str) -> Cause | None:
    """Return a precision that explains the logits and the first wrong activation of each probe."""
    found = _rounded_arithmetic(alone, dtype)
    if found is None:
        return None
    wrong = {key: result for key, result in results.items() if result.wrong}
    until = {key: min(map(result.order.index, result.wrong)) for key, result in wrong.items()}
    firsts = {key: result.without(result.order[until[key] + 1 :]) for key, result in wrong.items()}
    also = _rounded_arithmetic(firsts, dtype) if firsts else None
    return found if also and also.says == found.says else None


def _is_within(result: ProbeResult, kind: str) -> bool:
    budgets = segment_budgets(result.probe, result.recorded, kind, neighbours=1)
    return all(share(result.errors[tap], budgets[tap]) <= 1 for tap in result.recorded)


def _rounded_products(results: Results) -> Cause | None:
    """Return the first precision of the factors of matrix products (all, or in linear maps) that explains the
    difference."""
    order = next(iter(results.values())).order
    for kind in ("TF32", *HALF):
        left = [(_typically_left(results, each), each) for each in products_of(kind, order)]
        typical, best = min(left, key=lambda each: each[0])
        if typical <= thresholds.TYPICALLY_LEFT:
            return Cause("low-precision", best.fault.description, None, logits_error(results, (best,)), 1 - typical)
    return None


def _typically_left(results: Results, hypothesis: Hypothesis) -> float:
    """Return the median share of the difference that remains on a probe; infinity if a share exceeds
    `LEFT_AT_WORST`."""
    left = list[float]()
    for result in results.values():
        left.append(_share_left(result, hypothesis))
        if left[-1] > thresholds.LEFT_AT_WORST:
            return math.inf
    return float(np.median(left))


def _share_left(result: ProbeResult, hypothesis: Hypothesis) -> float:
    if not result.wrong:
        return 0.0
    ours, rounded = walk(result.probe, result.recorded), walk(result.probe, result.recorded, (hypothesis,))
    return max(left_with(result.recorded[tap], ours[tap], rounded[tap]) for tap in result.wrong)


def left_with(actual: np.ndarray, ours: np.ndarray, rounded: np.ndarray) -> float:
    """Return median |actual − rounded| / median |actual − ours|, without elements that are equal in all arrays. Return
    infinity if an element differs by more than rounding can cause."""
    ours, rounded = np.asarray(ours), np.asarray(rounded)
    moved = (actual != ours) | (rounded != ours)
    with np.errstate(all="ignore"):
        before, after = np.abs(actual - ours)[moved], np.abs(actual - rounded)[moved]
        possible = after.max(initial=0.0) <= thresholds.FURTHEST_ROUNDED * np.abs(rounded - ours).max(initial=0.0)
        return float(np.median(after) / np.median(before)) if possible else math.inf


class Factors(np.ndarray):
    """An array that rounds both factors of matrix products. With `spreads`, results are also `Factors`."""

    kind = "tf32"
    spreads = True

    def __array_finalize__(self, source: Any) -> None:
        self.kind, self.spreads = getattr(source, "kind", self.kind), getattr(source, "spreads", self.spreads)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        plain = [value.view(np.ndarray) if isinstance(value, Factors) else value for value in inputs]
        if ufunc is np.matmul:
            plain = [rounded_to(value, self.kind) for value in plain]
        if named.get("out"):
            named["out"] = tuple(np.asarray(value) for value in named["out"])
        result = getattr(ufunc, method)(*plain, **named)
        return factors(self.kind, result) if self.spreads and isinstance(result, np.ndarray) else result


def factors(kind: str, value: np.ndarray, *, spreads: bool = True) -> Factors:
    made = value.view(Factors)
    made.kind, made.spreads = kind, spreads
    return made


def products_of(kind: str, taps: list[str]) -> Iterator[Hypothesis]:
    """Yield two hypotheses: linear maps, or all matrix products, round their factors."""
    for which, sites in (("linear maps", ()), ("matrix products", taps)):
        description = f"rounding of the factors of {which} to {kind}"
        alter = partial(_alter, kind.lower(), spreads=bool(sites))
        downstream: Patch = lambda state, name, value: factors(kind.lower(), value)
        made = Fault("low-precision", f"{kind} {which}", description, alter=alter, downstream=downstream)
        yield Hypothesis(made, (PARAMETERS, *sites))


def _alter(kind: str, config: TransformerConfig, parameters: Arrays, site: str, *, spreads: bool) -> Arrays:
    if site != PARAMETERS:
        return {}
    in_memory = {name: value for name, value in parameters.items() if not isinstance(value, Mapped)}
    return {name: factors(kind, value, spreads=spreads) for name, value in in_memory.items()}
