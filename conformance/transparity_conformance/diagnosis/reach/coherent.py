"""Find errors within the budget that resemble the effect of a known fault on the logits more than rounding errors do.
Rounding errors point in random directions, so their projections onto an effect are small."""

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
"""The number of runs with slightly changed weights, from which rounding errors are measured."""

PROBES = ("mixed", "text", "tiny")
"""Probes on which most faults change the logits."""

Errors = Mapping[str, np.ndarray]

Key = tuple[str, str]
Effects = dict[Key, tuple[Hypothesis, np.ndarray]]

_kept: WeakKeyDictionary[Probe, Effects] = WeakKeyDictionary()


@dataclass(frozen=True)
class Coherent:
    hypothesis: Hypothesis
    coefficient: float
    """The multiple of the effect; 1 is the whole fault."""
    excess: float
    """The projection's length, relative to the largest length that rounding explains."""
    cause: Cause | None
    """The fault as a cause; None if the fault explains only part of the error."""

    @property
    def says(self) -> str:
        return (
            f"the logits are within the budget, but their error contains {self.coefficient:.3g} × the effect of a "
            f"fault ({self.hypothesis.fault.description}): {self.excess:.3g} × as much as rounding explains"
        )


def coherent_error(results: Results, dtype: str) -> Coherent | None:
    """Return the fault with the longest projection of the logits' error, unless rounding explains it."""
    some = {
        name: result.probe
        for name, result in results.items()
        if name in PROBES and not result.probe.is_large and "logits" in result.recorded
    }
    own = {
        name: [probe.oracle.rounding("logits", dtype, index).ravel() for index in range(POINTS)]
        for name, probe in some.items()
    }
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
    expected = probe.oracle.expected["logits"]
    return less(judged(probe, "logits", logits, expected, dtype), expected).ravel()


def _power(errors: Errors, scales: Mapping[str, float]) -> float:
    return sum(float(values @ values) / scales[name] ** 2 for name, values in errors.items())


def _farthest(
    errors: Errors, effects: Mapping[str, Effects], scales: Mapping[str, float]
) -> tuple[float, float, Key | None]:
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
    if probe not in _kept:
        expected, found = probe.oracle.expected["logits"], {}
        every = [*whole_model(probe.config), *hypotheses(probe.config, list(probe.oracle.expected))]
        # The user declared the half precision, so rounding is no fault.
        for hypothesis in widest(each for each in every if each.fault.id != "low-precision"):
            try:
                wrong = walk(probe, {}, (hypothesis,), until="logits")["logits"]
            except Impossible:
                continue
            effect = less(wrong, expected).ravel()
            if effect.shape == expected.ravel().shape and np.isfinite(effect).all() and effect.any():
                found[hypothesis.fault.id, hypothesis.fault.variant] = hypothesis, effect
        _kept[probe] = found
    return _kept[probe]
