"""The pool `fuzz`: the entry points, and each entry point's share of 20,000 inputs."""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic
from unittest.mock import patch

from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from meta.fuzz import columns, files, ports
from meta.fuzz.outcome import Outcome, outcome
from meta.fuzz.strategies import QUIETLY, Draw, Hostile, T
from meta.trial import Measure, Trial
from transparity_conformance.oracle.backends import installed

Door = Callable[[Draw, Path], str]

DOORS: dict[Door, int] = {
    files.configuration_text: 3000,
    files.configuration_object: 2000,
    files.parameters_file: 1500,
    files.parameters_named: 1000,
    files.parameters_object: 1500,
    files.bundle_file: 1200,
    files.bundle_manifest: 1200,
    files.bundle_outputs: 1600,
    files.checkpoint_fields: 1800,
    files.checkpoint_tensors: 1200,
    ports.port_call: 1500,
    ports.port_check: 140,
    ports.port_file: 500,
    ports.program: 400,
    columns.column_build: 600,
    columns.column_call: 700,
    ports.command_line: 160,
}
"""The number of inputs by entry point; entry points that start a process or search for causes get few inputs."""

TOTAL = sum(DOORS.values())


@dataclass
class Unshown(Generic[T]):
    """A wrapper for values that Hypothesis must not print, because printing some of them raises."""

    value: T = field(repr=False)


def inputs_of(door: Door, total: int) -> int:
    """Return how many of `total` inputs an entry point gets, rounded up."""
    return -(-total * DOORS[door] // TOTAL)


def judged(door: Door, inputs: int, number: int = 0) -> list[Outcome]:
    """Return the outcomes of inputs. After a violation, Hypothesis tries smaller inputs; the last outcome belongs to
    the smallest input with a violation."""
    found: list[Outcome] = []
    files.right_bundle()  # the time to write it does not count

    @seed(number)
    @settings(QUIETLY, max_examples=inputs, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)
    @given(st.data())
    def try_one(data: st.DataObject) -> None:
        def draw(strategy: st.SearchStrategy[T], /) -> T:
            with patch.object(Hostile, "is_drawn", False):
                return data.draw(strategy.map(Unshown)).value

        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            found.append(outcome(lambda: door(draw, Path(folder))))
        assert not found[-1].violation

    with suppress(AssertionError, Flaky):  # `found` contains the violation; a violation of time may not repeat
        try_one()
    return found


def tried(door: Door, inputs: int, number: int) -> dict[str, Any]:
    """Summarize the outcomes of inputs to one entry point; the time to import the frameworks does not count."""
    for name in installed():
        columns.model(name)
    found = judged(door, inputs, number)
    return {
        "what": Counter(each.what for each in found),
        "longest": max(each.seconds for each in found),
        "megabytes": max(each.megabytes for each in found),
        "violations": [each.violation for each in found if each.violation],
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--inputs", type=int, default=TOTAL)


def trials(options: argparse.Namespace) -> list[Trial]:
    return [Trial(door.__name__, partial(tried, door, inputs_of(door, options.inputs), options.seed)) for door in DOORS]


MEASURES = (
    Measure(
        "inputs that are answered in time by a verdict or a readable message",
        lambda _, answer: (answer["what"].total() - len(answer["violations"]), answer["what"].total()),
        1.0,
    ),
)
