"""Everything that is compared besides one forward pass, in order: the cheapest evidence first."""

from __future__ import annotations

from collections.abc import Mapping

from transparity_conformance.against.reference import Inputs
from transparity_conformance.against.ways.steps import compare_steps
from transparity_conformance.against.ways.way import Sides
from transparity_conformance.report.capability_result import not_compared, with_capabilities
from transparity_conformance.report.report import Report

WAYS = {"step": compare_steps}


def with_ways(report: Report, sides: Sides, probes: Mapping[str, Inputs], *, is_drawn: bool) -> Report:
    """Add what is found in other ways to call both; a forward pass that does not agree is in all of them."""
    for name, compare in WAYS.items():
        if report.verdict == "inconclusive" or report.faults:
            report = with_capabilities(report, not_compared(f"{name}: the forward pass does not agree"))
        elif not is_drawn:
            report = with_capabilities(report, not_compared(f"{name}: the inputs were given, and none can be drawn"))
        else:
            report = with_capabilities(report, compare(sides))
    return report
