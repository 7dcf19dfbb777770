"""Coherent errors: faults whose effect is within the budget but unlike rounding.

The budget bounds the largest error. A smaller error along the effect of a known fault (the reference with the fault
minus the reference) accumulates over all logits, whereas rounding cancels. The logits' error is regressed on each
effect. The coefficient, in units of its own rounding, is compared with the reference's rounding at neighboring points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from transparity_conformance.catalogue import hypotheses, whole_model, widest
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.probe_result import Results
from transparity_conformance.diagnosis.thresholds import COHERENT
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged
from transparity_conformance.report.comparison import less
from transparity_conformance.report.report import Cause

POINTS = 5
"""The number of neighboring points at which the reference's rounding is measured."""

PROBES = ("mixed", "text", "tiny")
"""The probes that are tested, if the model is not large; most faults show on them."""

Errors = Mapping[str, np.ndarray]
"""Flattened differences of logits, by probe."""

Key = tuple[str, str]
Effects = dict[Key, tuple[Hypothesis, np.ndarray]]
"""The effect of each fault, by its id and variant, on the logits of one probe."""

_kept: WeakKeyDictionary[Probe, Effects] = WeakKeyDictionary()


@dataclass(frozen=True)
class Coherent:
    """An error along the effect of a fault."""

    hypothesis: Hypothesis
    coefficient: float
    """1 if the port has the whole fault."""
    excess: float
    """Its length along the effect, relative to the largest one that rounding has."""
    cause: Cause | None
    """The fault, if the reference with it leaves nothing coherent."""

    @property
    def says(self) -> str:
        return (
            f"the logits are within the budget, but their error is not rounding: it contains {self.coefficient:.3g} × "
            f"a fault's effect ({self.hypothesis.fault.description}), {self.excess:.3g} × the maximum of rounding"
        )


def coherent_error(results: Results, dtype: str) -> Coherent | None:
    """Find the effect along which the logits' error exceeds rounding the most."""
    some = {
        name: result.probe
        for name, result in results.items()
        if name in PROBES and not result.probe.is_large and "logits" in result.recorded
    }
    own = {name: [_own(probe, dtype, index) for index in range(POINTS)] for name, probe in some.items()}
    scales = {name: float(np.sqrt(np.mean(np.square(errors)))) for name, errors in own.items()}
    scales = {name: scale for name, scale in scales.items() if scale and math.isfinite(scale)}
    error = {name: _error(results[name].probe, results[name].recorded["logits"], dtype) for name in scales}
    if not scales or not all(np.isfinite(value).all() for value in error.values()):
        return None
    effects = {name: _effects(some[name]) for name in scales}
    allowed = COHERENT * max(
        1.0, *(_farthest({name: own[name][index] for name in scales}, effects, scales)[0] for index in range(POINTS))
    )
    distance, coefficient, key = _farthest(error, effects, scales)
    if distance <= allowed or key is None:
        return None
    hypothesis = next(effect[key][0] for effect in effects.values() if key in effect)
    left = {name: error[name] - effects[name][key][1] if key in effects[name] else error[name] for name in error}
    cause = None
    if _farthest(left, effects, scales)[0] <= allowed:
        fault = hypothesis.fault
        explained = 1 - math.sqrt(_power(left, scales) / _power(error, scales))
        largest = max(float(np.abs(values).max(initial=0.0)) for values in left.values())
        cause = Cause(fault.id, fault.description, fault.value, largest, explained)
    return Coherent(hypothesis, coefficient, distance / allowed, cause)


def _error(probe: Probe, logits: np.ndarray, dtype: str) -> np.ndarray:
    """Return the port's logits minus the oracle's; 0 where a convention or a near-tie decides."""
    expected = probe.oracle.expected["logits"]
    return less(judged(probe, "logits", logits, expected, dtype), expected).ravel()


def _own(probe: Probe, dtype: str, index: int) -> np.ndarray:
    """Return the reference's own rounding of the logits at a neighboring point."""
    return probe.oracle.rounding("logits", dtype, index).ravel()


def _power(errors: Errors, scales: Mapping[str, float]) -> float:
    return sum(float(values @ values) / scales[name] ** 2 for name, values in errors.items())


def _farthest(
    errors: Errors, effects: Mapping[str, Effects], scales: Mapping[str, float]
) -> tuple[float, float, Key | None]:
    """Return how far `errors` lie along an effect, in units of rounding, the coefficient, and the effect's key."""
    best: tuple[float, float, Key | None] = (0.0, 0.0, None)
    for key in dict.fromkeys(key for effect in effects.values() for key in effect):
        along = size = 0.0
        for name, effect in effects.items():
            if key in effect:
                value = effect[key][1]
                along += float(errors[name] @ value) / scales[name] ** 2
                size += float(value @ value) / scales[name] ** 2
        if size and abs(along) / math.sqrt(size) > best[0]:
            best = abs(along) / math.sqrt(size), along / size, key
    return best


def _effects(probe: Probe) -> Effects:
    """Return the effects of all faults on the logits of `probe`, each at all possible sites."""
    if probe not in _kept:
        expected, found = probe.oracle.expected["logits"], {}
        every = [*whole_model(probe.config), *hypotheses(probe.config, list(probe.oracle.expected))]
        for hypothesis in widest(
            each for each in every if each.fault.id != "low-precision"
        ):  # low precision may be declared
            try:
                wrong = walk(probe, {}, (hypothesis,), until="logits")["logits"]
            except Impossible:
                continue
            effect = less(wrong, expected).ravel()
            if effect.shape == expected.ravel().shape and np.isfinite(effect).all() and effect.any():
                found[hypothesis.fault.id, hypothesis.fault.variant] = hypothesis, effect
        _kept[probe] = found
    return _kept[probe]
