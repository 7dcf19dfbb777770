"""The doors, and how many of 20,000 inputs each is given: `python -m meta.fuzz [--inputs N] [--only DOOR]`."""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from meta.fuzz import columns, files, ports
from meta.fuzz.outcome import Outcome, outcome
from meta.fuzz.strategies import Draw, T
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
"""Those that start a process or look for causes are few."""

TOTAL = sum(DOORS.values())


@dataclass
class Unshown(Generic[T]):
    """A value that Hypothesis does not print: some raise."""

    value: T = field(repr=False)


def inputs_of(door: Door, total: int) -> int:
    """Return the inputs of a door among `total`, rounded up: each door has at least one."""
    return -(-total * DOORS[door] // TOTAL)


def judged(door: Door, inputs: int, number: int = 0) -> list[Outcome]:
    """Run inputs of a door, each in a folder of its own; at a violation, smaller ones follow, the smallest last."""
    found: list[Outcome] = []

    @seed(number)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(st.data())
    def try_one(data: st.DataObject) -> None:
        def draw(strategy: st.SearchStrategy[T], /) -> T:
            return data.draw(strategy.map(Unshown)).value

        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            found.append(outcome(door.__name__, lambda: door(draw, Path(folder))))
        assert not found[-1].violation

    with suppress(AssertionError):  # it is among what was found
        try_one()
    return found


def summary(name: str, found: list[Outcome]) -> str:
    """Return a line of a door: what became of its inputs, the slowest, the largest, and a violation."""
    counts = ", ".join(f"{what} {count}" for what, count in Counter(each.what for each in found).most_common())
    most = max(each.seconds for each in found), max(each.megabytes for each in found)
    wrong = [each.violation for each in found if each.violation]
    end = f"\n  {wrong[-1]}" if wrong else ""  # the last one is the smallest
    return f"{name}: {len(found)} inputs ({counts}); at most {most[0]:.2f} s, {most[1]:.0f} MB{end}"


def main() -> int:
    """Run the inputs that the arguments ask for; 1 if one was not answered as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=TOTAL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="DOOR", choices=["", *(door.__name__ for door in DOORS)])
    options, found = parser.parse_args(), list[Outcome]()
    for name in installed():
        columns.model(name)  # importing a framework is not a part of an input
    for door in (door for door in DOORS if options.only in ("", door.__name__)):
        found += (of_door := judged(door, inputs_of(door, options.inputs), options.seed))
        print(summary(door.__name__, of_door), flush=True)  # noqa: T201
    print(summary("all", found))  # noqa: T201
    return int(any(each.violation for each in found))
