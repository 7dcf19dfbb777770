"""Repeated calls: a model that keeps nothing between calls gives one answer to the same inputs."""

from __future__ import annotations

from collections.abc import Mapping

from transparity_conformance.against.reference import Inputs
from transparity_conformance.against.ways.way import Sides, Way, as_result
from transparity_conformance.report.capability_result import CapabilityResult

CLAIM = Way("repeats", "", (), "")

TIMES = 3


def compare_repeats(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Call the first inputs several times, then others, and then the first again."""
    (first, inputs), *others = probes.items()
    calls = {f"{first}, called again ({number})": inputs for number in range(1, TIMES + 1)}
    if others:
        name, other = others[0]
        calls |= {f"{name}, after {first}": other, f"{first}, after {name}": inputs}
    return as_result(CLAIM, sides.compared(calls))
