"""Compare cached steps: a prompt, then one or a few positions at a time, across the thresholds of the configuration."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from transparity.text import describe_error
from transparity_conformance.against.probes import Answer, draw, padded, taken, without_mask
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.reach import crossed, longest_of
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.capabilities.port_calls import signature_of
from transparity_conformance.matching.values import apart
from transparity_conformance.report.report import CapabilityResult, not_compared
from transparity_conformance.running.ways import up_to

PROMPT, CHUNK, LENGTH = 5, 3, 13
"""The length of the prompt, the positions in each step after it, and the length of a text.

Texts are longer than the windows of small models.
"""

BEYOND = 4
"""The number of positions after a threshold. The prompt ends one position before the threshold."""

SECONDS = 2.0
"""After this processor time, longer prompts are skipped, so that small models get a verdict within seconds."""

CLAIM = "step"


def compare_steps(sides: Sides) -> CapabilityResult:
    """Compare cached steps, except where the reference's steps differ from its own forward pass."""
    found, ends = CapabilityResult(), time.thread_time() + SECONDS
    if reason := why_not("in_steps", sides):
        return not_compared(f"cached steps: {reason}")
    for way, probes in _requests(sides.reference):
        if found.faults:
            break
        if time.thread_time() > ends:
            return found + not_compared(f"{CLAIM}, {way.says}, and longer prompts: the comparison takes too long")
        found += _compared(way, sides, probes)
    return found


def _compared(way: Way, sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the first probe that the port accepts and on which the reference's steps equal its forward pass."""
    given, reasons = taken(probes, signature_of(sides.forward))
    view, found = way.reference(sides.reference), CapabilityResult()
    for name, inputs in given.items():
        if reason := _inconsistency(view, sides.reference, inputs):
            reasons.append(f"{name}: {reason}")
        else:
            found = compare_way(way, sides, {name: inputs}, view, up_to_first)
            break
    return found + not_compared(*(f"{CLAIM}, {way.says}: {each}" for each in reasons))


def up_to_first(answer: Answer) -> Inputs:
    """Return the inputs up to the first wrong position."""
    return up_to(answer.inputs, answer.first + 1)


def _requests(reference: Reference) -> Iterator[tuple[Way, Mapping[str, Inputs]]]:
    model, longest = reference.model, longest_of(reference)
    length = min(LENGTH, longest)
    rows = padded(draw(model, length, 3, length), "left")
    calls = {f"2 × {length}": without_mask(draw(model, length, 2, length))}
    singly = ({} if rows is None else {f"3 × {length}, padded on the left": rows}) | calls
    yield _way(PROMPT, 1, "one at a time"), singly
    yield _way(PROMPT, CHUNK, f"{CHUNK} at a time"), calls
    for number in crossed(reference, longest - BEYOND):
        if number > length:
            inputs = without_mask(draw(model, number + BEYOND, 1, number))
            yield _way(number - 1, 1, "one at a time"), {f"1 × {number + BEYOND}": inputs}


def _way(first: int, then: int, says: str) -> Way:
    return Way(CLAIM, "in_steps", (first, then), f"{first} positions, then {says}")


def _inconsistency(view: Reference, reference: Reference, inputs: Inputs) -> str:
    """Return why the reference's steps cannot be compared; empty if they equal its own forward pass."""
    try:
        (steps, budget), (whole, own) = view.near(inputs), reference.near(inputs)
    except Exception as error:  # noqa: BLE001 - the reference may refuse a call that it seems to take
        return f"the reference raises {describe_error(error)}"
    errors = apart(steps, whole, reference.kept(inputs, whole.shape))
    return "the reference's own steps differ from its forward pass" if errors.max() > budget + own else ""
