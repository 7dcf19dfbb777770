"""Everything that is compared besides the first forward passes, in order: the cheapest evidence first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from transparity_conformance.against.probes import length_of
from transparity_conformance.against.reference import Inputs
from transparity_conformance.against.ways.gradients import compare_gradients
from transparity_conformance.against.ways.outputs import compare_generation, compare_losses
from transparity_conformance.against.ways.reach import compare_repeats, compare_sizes
from transparity_conformance.against.ways.steps import compare_steps
from transparity_conformance.against.ways.way import Sides
from transparity_conformance.report.capability_result import not_compared, with_capabilities
from transparity_conformance.report.coverage import Coverage
from transparity_conformance.report.report import Report

BEFORE = "what was compared before does not agree"

DRAWN = {"other lengths and batches": compare_sizes, "cached steps": compare_steps}
"""What needs inputs of its own, which are drawn from a configuration of transformers."""


GIVEN = {
    "generation": compare_generation,
    "losses": compare_losses,
    "gradients": compare_gradients,
    "repeated calls": compare_repeats,
}
"""What is compared on the inputs of the forward passes; the last sees what all calls before it left behind."""


def with_ways(report: Report, sides: Sides, probes: Mapping[str, Inputs], *, is_drawn: bool) -> Report:
    """Add what is found in other ways to call both, up to the first that differs."""
    for name, compare_drawn in DRAWN.items():
        if report.verdict != "agrees":
            report = with_capabilities(report, not_compared(f"{name}: {BEFORE}"))
        elif not is_drawn:
            report = with_capabilities(report, not_compared(f"{name}: the inputs were given, and no others are drawn"))
        else:
            report = with_capabilities(report, compare_drawn(sides))
    for name, compare in GIVEN.items():
        if report.verdict != "agrees":
            report = with_capabilities(report, not_compared(f"{name}: {BEFORE}"))
        else:
            report = with_capabilities(report, compare(sides, probes))
    return dataclasses.replace(report, coverage=_coverage(sides.called))


def _coverage(called: list[Inputs]) -> Coverage:
    """The lengths and batches of all forward passes, each of one object among the others."""
    lengths = {length_of(each) for each in called} - {0}
    batches = {next(iter(each.values())).shape[0] for each in called if next(iter(each.values())).ndim}
    return Coverage(tuple(sorted(lengths)), tuple(sorted(batches)), len(called))
