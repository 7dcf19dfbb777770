"""Compare a third implementation, called like the port, to show which of the three differs from the other two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from transparity_conformance.against.probes import Answer, taken
from transparity_conformance.against.ways.way import Sides
from transparity_conformance.capabilities.port_calls import signature_of
from transparity_conformance.matching.values import apart
from transparity_conformance.report.parts import ThirdComparison


def compare_third(
    sides: Sides, answers: Sequence[Answer], make: Callable[[], Callable[..., Any]], name: str
) -> ThirdComparison:
    """Compare a third implementation with the reference, and with the port within the budgets of both.

    Args:
        sides, answers: The port and the reference, and their answers.
        make, name: A function that makes the third implementation's forward pass, and its name.
    """
    third = Sides(sides.reference, make, 0.0, sides.progress)
    given, _ = taken({each.probe: each.inputs for each in answers}, signature_of(third.forward))
    found = {each.probe: each for each in third.judged(given).answers}
    port = [each for each in answers if each.probe in found]
    return ThirdComparison(
        sides.reference.name,
        name,
        all(each.agrees for each in port),
        all(_are_alike(sides, each, found[each.probe]) for each in port),
        all(each.agrees for each in found.values()),
        len(port),
    )


def _are_alike(sides: Sides, one: Answer, other: Answer) -> bool:
    kept = sides.reference.kept(one.inputs, one.actual.shape)
    return bool(apart(one.actual, other.actual, kept).max() <= one.budget + other.budget)
