"""Fit the number of a fault, such as a wrong scale, to the values of the port."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import faults_at, numeric_faults
from transparity_conformance.catalogue.fault import Fault, Hypothesis, NumericFault, WalkState, groups
from transparity_conformance.diagnosis.thresholds import BELOW_MEDIAN, IMPROVED

PROMISING = 12
"""The number of steps after which a poor fit ends; by then, the search interval has shrunk to 1/300."""

STEPS = 40
"""The largest number of steps; by then, the search interval has shrunk to 1/(2 × 10⁸)."""

Fittable = tuple[NumericFault, tuple[str, ...]]


def fit(fittable: Fittable, left: Callable[[Hypothesis], float]) -> Hypothesis | None:
    """Return the fault whose number minimizes `left`, if it is clearly better than other numbers."""
    numeric, sites = fittable
    number = _minimize(lambda number: left(Hypothesis(numeric.make(number), sites)), numeric.grid)
    return None if number is None else Hypothesis(numeric.make(number), sites)


def by_size(sizes: Mapping[TransformerConfig, Hypothesis]) -> Hypothesis:
    """Combine one fault, fitted for several configurations, into a fault whose number depends on the configuration."""
    first, *others = sizes.items()
    config, hypothesis = first
    says = hypothesis.fault.description
    for other, fitted_there in others:
        names = ("head_dim", "embed_dim", "num_heads")
        changed = [f"{name} {getattr(other, name)}" for name in names if getattr(other, name) != getattr(config, name)]
        says += f"; in a model with {', '.join(changed)}, the number is {fitted_there.fault.value:.4g}"

    def patch(state: WalkState, site: str, value: Any) -> Any:
        return sizes[state.config].fault.patched(state, site, value) if state.config in sizes else value

    fault = dataclasses.replace(hypothesis.fault, patch=patch, formula=None, description=says)
    return dataclasses.replace(hypothesis, fault=fault)


def of_each_kind(every: Iterable[Fittable]) -> list[Fittable]:
    """Return the first entry of each fault id; the first entry acts at all possible taps."""
    found: dict[str, Fittable] = {}
    for numeric, chosen in every:
        found.setdefault(numeric.make(1.0).id, (numeric, chosen))
    return list(found.values())


def fittables(config: TransformerConfig, sites: list[str]) -> Iterator[Fittable]:
    for numeric in numeric_faults(config):
        for chosen in groups(site for site in sites if numeric.is_site(site)):
            yield numeric, chosen


def made_at(config: TransformerConfig, fault: Fault, site: str, ranks: int = 1) -> Fault | None:
    """Return the fault at `site` with the same id and variant. Without one, return `fault` if its number can be fitted
    at `site`, else None."""
    every = faults_at(config, site, ranks)
    same = next((each for each in every if (each.id, each.variant) == (fault.id, fault.variant)), None)
    fitted = (numeric.make(1.0).id for numeric, _ in fittables(config, [site]))
    return same or (fault if fault.value is not None and fault.id in fitted else None)


def _minimize(function: Callable[[float], float], grid: Sequence[float]) -> float | None:
    values = [function(number) for number in grid]
    if not np.nanmin(values) < np.nanmax(values):
        return None
    refined = golden_section(function, grid, int(np.nanargmin(values)))
    least = list(itertools.islice(refined, PROMISING + 1))[-1][1]
    if least > max(min(values) / IMPROVED, float(np.nanmedian(values)) / BELOW_MEDIAN):
        return None
    return list(itertools.islice(refined, STEPS - PROMISING))[-1][0]


def golden_section(
    function: Callable[[float], float], grid: Sequence[float], best: int
) -> Iterator[tuple[float, float]]:
    """Narrow an interval around `grid[best]`; yield the middle and the smallest value of `function` inside."""
    low, high = math.log(grid[max(0, best - 1)]), math.log(grid[min(len(grid) - 1, best + 1)])
    ratio = (math.sqrt(5) - 1) / 2
    inner, outer = high - ratio * (high - low), low + ratio * (high - low)
    at_inner, at_outer = function(math.exp(inner)), function(math.exp(outer))
    while True:
        yield math.exp((low + high) / 2), min(at_inner, at_outer)
        if at_inner < at_outer:
            high, outer, at_outer = outer, inner, at_inner
            inner = high - ratio * (high - low)
            at_inner = function(math.exp(inner))
        else:
            low, inner, at_inner = inner, outer, at_outer
            outer = low + ratio * (high - low)
            at_outer = function(math.exp(outer))
