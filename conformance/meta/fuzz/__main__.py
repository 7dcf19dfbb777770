"""Run the campaign: `python -m meta.fuzz [--inputs N] [--seed N] [--only DOOR]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from meta.fuzz.campaign import DOORS, TOTAL, inputs_of, judged
from meta.fuzz.columns import model
from meta.fuzz.outcome import Outcome
from transparity_conformance.oracle.backends import installed

COLUMNS = ("door", "inputs", "outcomes", "slowest", "most MB", "violations")


def row(door: str, found: list[Outcome]) -> Iterator[str]:
    """Yield the cells of a door: its inputs, what became of them, the slowest, the largest, and violations."""
    counts = Counter(each.what for each in found)
    yield from (door, str(len(found)), ", ".join(f"{what} {count}" for what, count in counts.most_common()))
    yield f"{max(each.seconds for each in found):.2f} s"
    yield f"{max(each.megabytes for each in found):.0f}"
    yield str(sum(bool(each.violation) for each in found))


def main() -> None:
    """Run the inputs that the arguments ask for; exit with 1 if one was not answered as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=TOTAL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="DOOR", choices=["", *(door.__name__ for door in DOORS)])
    given = parser.parse_args()
    console, found = Console(markup=False, highlight=False, soft_wrap=True), list[Outcome]()
    shown = Table(*COLUMNS, title="What became of each input")
    for name in installed():
        model(name)  # importing a framework is not a part of an input
    for door in (door for door in DOORS if given.only in ("", door.__name__)):
        of_door = judged(door, inputs_of(door, given.inputs), given.seed)
        shown.add_row(*row(door.__name__, of_door))
        found += of_door
        if wrong := [each for each in of_door if each.violation]:
            console.print(f"{door.__name__}: {wrong[-1].violation}")  # the last one is the smallest
    shown.add_row(*row("all", found))
    console.print(shown)
    sys.exit(any(each.violation for each in found))


if __name__ == "__main__":
    main()
