"""Run the campaign: `python -m meta.fuzz [--inputs N] [--seed N] [--only KIND] [--index N]`."""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict

from rich.console import Console
from rich.table import Table

from meta.fuzz.campaign import KINDS, TOTAL, campaign, one_input
from meta.fuzz.outcome import Outcome


def table(outcomes: list[Outcome]) -> Table:
    """One row for each kind: what became of its inputs, the slowest, and the longest sentence."""
    shown = Table(title="What became of each input")
    for column in ("kind", "inputs", "outcomes", "slowest", "most MB", "violations"):
        shown.add_column(column, overflow="fold")
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for found in outcomes:
        by_kind[found.kind].append(found)
    for kind, of_kind in [*by_kind.items(), ("all", outcomes)]:
        counts = Counter(found.what for found in of_kind)
        shown.add_row(
            kind,
            str(len(of_kind)),
            ", ".join(f"{what} {count}" for what, count in counts.most_common()),
            f"{max(found.seconds for found in of_kind):.2f} s",
            f"{max(found.megabytes for found in of_kind):.0f}",
            str(sum(bool(found.violation) for found in of_kind)),
        )
    return shown


def main() -> None:
    """Run the inputs that the arguments ask for; exit with 1 if one was not answered as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=TOTAL)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="KIND", choices=["", *(kind.__name__ for kind in KINDS)])
    parser.add_argument("--index", type=int, help="Run this input of the kind alone.")
    given = parser.parse_args()
    console, outcomes = Console(markup=False, highlight=False, soft_wrap=True), []
    if given.index is None:
        found = campaign(given.inputs, given.seed, given.only)
    else:
        found = (one_input(kind, given.index, given.seed) for kind in KINDS if kind.__name__ == given.only)
    for item in found:
        outcomes.append(item)
        if item.violation or given.index is not None:
            console.print(f"{item.kind} {item.index}: {item.violation or item.sentence or item.what}")
    console.print(table(outcomes))
    sys.exit(any(item.violation for item in outcomes))


if __name__ == "__main__":
    main()
