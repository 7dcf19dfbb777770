"""Cached steps: a prompt, then one position or a few at a time, across the thresholds of the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from transparity_conformance.against.compare import Answer
from transparity_conformance.against.probes import draw, padded, taken
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.sizes import crossed, longest_of
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.capabilities.port_calls import describe_raised, signature_of
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.comparison import difference
from transparity_conformance.running.ways import up_to

PROMPT, CHUNK, LENGTH = 5, 3, 13
"""A prompt, the positions that are taken at once after it, and the length of a text: beyond the windows of small
models."""

BEYOND = 4
"""Positions after a threshold; the prompt ends one before it."""

CLAIM = "step"


def compare_steps(sides: Sides) -> CapabilityResult:
    """Compare cached steps, but those in which the reference departs from its own forward pass."""
    found = CapabilityResult()
    for way, probes in _requests(sides.reference):
        if reason := why_not(way, sides):
            return not_compared(reason)
        given, left_out = taken(probes, signature_of(sides.forward))
        right, reasons = _consistent(way, sides.reference, given)
        found += not_compared(*(f"{CLAIM}, {way.says}: {each}" for each in (*left_out, *reasons)))
        found += compare_way(way, sides, right, up_to_first)
        if found.faults:
            break
    return found


def up_to_first(answer: Answer) -> Inputs:
    """Return the inputs up to the first wrong position."""
    return up_to(answer.inputs, answer.first + 1)


def _requests(reference: Reference) -> Iterator[tuple[Way, Mapping[str, Inputs]]]:
    model, longest = reference.model, longest_of(reference)
    length = min(LENGTH, longest)
    plain, names = draw(model, length, 2, length), {1: "one at a time", CHUNK: f"{CHUNK} at a time"}
    rows = padded(draw(model, length, 3, length), "left")
    for chunk, inputs in ((1, plain if rows is None else rows), (CHUNK, plain)):
        is_padded = any("mask" in name and not np.all(value) for name, value in inputs.items())
        name = f"{len(next(iter(inputs.values())))} × {length}" + ", padded on the left" * is_padded
        yield Way(CLAIM, "in_steps", (PROMPT, chunk), f"{PROMPT} positions, then {names[chunk]}"), {name: inputs}
    for number in crossed(reference, longest - BEYOND):
        if number > length:
            says = f"{number - 1} positions, then {names[1]}"
            inputs = draw(model, number + BEYOND, 1, number)
            yield Way(CLAIM, "in_steps", (number - 1, 1), says), {f"1 × {number + BEYOND}": inputs}


def _consistent(way: Way, reference: Reference, probes: Mapping[str, Inputs]) -> tuple[dict[str, Inputs], list[str]]:
    """Return the probes on which the reference's steps give its own forward pass, and the reasons for the others."""
    view, kept, reasons = way.reference(reference), dict[str, Inputs](), []
    for name, inputs in probes.items():
        try:
            (steps, budget), (whole, own) = view.near(inputs), reference.near(inputs)
        except Exception as error:  # noqa: BLE001 - the reference may refuse a call that it seems to take
            reasons.append(f"the reference raises {describe_raised(error)}")
            continue
        where = reference.kept(inputs, whole.shape)
        pair = (steps, whole) if where is None or steps.shape != whole.shape else (steps[where], whole[where])
        if difference(*pair) > budget + own:
            reasons.append(f"{name}: the reference's own steps depart from its forward pass")
        else:
            kept[name] = inputs
    return kept, reasons
