"""All comparisons besides the first forward passes, in order: the cheapest evidence first."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from transparity_conformance.against.probes import length_of
from transparity_conformance.against.reference import Inputs
from transparity_conformance.against.ways.gradients import compare_gradients
from transparity_conformance.against.ways.outputs import compare_generation, compare_losses
from transparity_conformance.against.ways.reach import compare_repeats, compare_sizes
from transparity_conformance.against.ways.steps import compare_steps
from transparity_conformance.against.ways.way import Sides
from transparity_conformance.report.capability_result import CapabilityResult, not_compared, with_capabilities
from transparity_conformance.report.coverage import Coverage
from transparity_conformance.report.report import Report

BEFORE = "an earlier comparison does not agree"

NOT_DRAWN = "the given inputs are the only ones"

COMPARISONS: dict[str, Callable[[Sides, Mapping[str, Inputs]], CapabilityResult]] = {
    "other lengths and batches": lambda sides, _: compare_sizes(sides),
    "cached steps": lambda sides, _: compare_steps(sides),
    "generation": compare_generation,
    "losses": compare_losses,
    "gradients": compare_gradients,
    "repeated calls": compare_repeats,
}
"""The comparisons in order, each on the inputs of the forward passes.

Repeated calls come last, because a state changed by an earlier call shows in them.
"""

DRAWN = ("other lengths and batches", "cached steps")
"""Comparisons that draw their own inputs from a configuration of transformers."""


def with_ways(report: Report, sides: Sides, probes: Mapping[str, Inputs], *, is_drawn: bool) -> Report:
    """Add the results of other ways to call both, up to the first that differs."""
    for name, compare in COMPARISONS.items():
        reason = NOT_DRAWN if name in DRAWN and not is_drawn else ""
        reason = BEFORE if report.verdict != "agrees" else reason
        found = not_compared(f"{name}: {reason}") if reason else compare(sides, probes)
        report = with_capabilities(report, found)
    return dataclasses.replace(report, coverage=_coverage(sides.called))


def _coverage(called: list[Inputs]) -> Coverage:
    """Return the lengths and batches of all forward passes of one object."""
    lengths = {length_of(each) for each in called} - {0}
    batches = {next(iter(each.values())).shape[0] for each in called if next(iter(each.values())).ndim}
    return Coverage(tuple(sorted(lengths)), tuple(sorted(batches)), len(called))
