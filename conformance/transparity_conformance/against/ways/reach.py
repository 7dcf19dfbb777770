"""Compare other forward passes: lengths beyond each size in the configuration, other batches, and repeated calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from transparity_conformance.against.compare import Outcome
from transparity_conformance.against.probes import draw, is_text, length_of, taken
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.way import Sides, Way, as_result
from transparity_conformance.capabilities.port_calls import signature_of
from transparity_conformance.diagnosis.reach.coverage import Call, bisect, boundary
from transparity_conformance.oracle.reach.models import AFFORDABLE
from transparity_conformance.oracle.reach.thresholds import BATCHES, LONGEST, SHORT, lengths_up_to
from transparity_conformance.report.report import CapabilityResult, not_compared

CLAIM = Way("forward.reach", "", (), "")

SECONDS = 2.0
"""After this processor time, further lengths are skipped, so that small models get a verdict within seconds."""

MOST_ROWS = 13
"""The numbers of rows in a batch run from 1 to this number, in turn."""


def longest_of(reference: Reference) -> int:
    """Return the length of the longest text: limited by the positions, by about 0.2 s, or by `LONGEST`."""
    positions = getattr(reference.model.config, "max_position_embeddings", None) or LONGEST
    size = sum(each.size for each in reference.weights.values())
    return max(1, min(LONGEST, int(positions), int(AFFORDABLE / max(size, 1))))


def crossed(reference: Reference, longest: int) -> list[int]:
    """Return the integers of the configuration that a text may exceed, such as a window or a chunk."""
    return sorted({int(number) for number in reference.numbers if number.is_integer() and 1 < number <= longest})


def compare_sizes(sides: Sides) -> CapabilityResult:
    """Compare both at other lengths and batches. If a length is wrong, search for the first wrong length."""
    began, outcome, left_out = time.thread_time(), Outcome(()), list[int]()
    for length, batch in _sizes(sides):
        if time.thread_time() - began > SECONDS:
            left_out.append(length)
            continue
        outcome = outcome.with_answers(sides.judged(_probe(sides, length, batch)))

    def call(length: int) -> bool | None:
        nonlocal outcome
        now = sides.judged(_probe(sides, length, 1))
        outcome = outcome.with_answers(now)
        return bool(now.wrong) if now.answers else None

    bisect(_calls(outcome), call)
    return _result(sides, outcome, left_out)


def _calls(outcome: Outcome) -> list[Call]:
    return [Call(each.probe, length_of(each.inputs), not each.agrees) for each in outcome.answers]


def _sizes(sides: Sides) -> list[tuple[int, int]]:
    """Return lengths and batches. Short lengths use all batches in turn; longer lengths use one or two rows."""
    model = sides.reference.model
    if not is_text(model):
        return [(1, batch) for batch in BATCHES]
    longest = longest_of(sides.reference)
    lengths = lengths_up_to(longest, crossed(sides.reference, longest))
    short = [length for length in lengths if length <= SHORT]
    found = [(length, 1 + index % MOST_ROWS) for index, length in enumerate(short)]
    return found + [(length, 1 + (length < 100)) for length in lengths if length > SHORT]


def _probe(sides: Sides, length: int, batch: int) -> Mapping[str, Inputs]:
    inputs = draw(sides.reference.model, length, batch, length)
    return taken({f"{batch} × {length}": inputs}, signature_of(sides.forward))[0]


def _result(sides: Sides, outcome: Outcome, left_out: list[int]) -> CapabilityResult:
    if not outcome.answers:
        return CapabilityResult()
    found: Any = as_result(CLAIM, sides.explained(outcome))
    if outcome.wrong:
        found += CapabilityResult(notes=(boundary(_calls(outcome)),))
    if left_out:
        found += not_compared(f"lengths {', '.join(map(str, left_out))}: comparing all lengths takes too long")
    return found


REPEATS = Way("repeats", "", (), "")

TIMES = 3


def compare_repeats(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Call both with the first inputs several times, with other inputs, and with the first inputs again."""
    (first, inputs), *others = probes.items()
    calls = {f"{first}, called again ({number})": inputs for number in range(1, TIMES + 1)}
    if others:
        name, other = others[0]
        calls |= {f"{name}, after {first}": other, f"{first}, after {name}": inputs}
    return as_result(REPEATS, sides.compared(calls))
