"""Measure the checker: `python -m meta.power.run [--sample N] [--json FILE]`.

Every catalogued fault in every configuration where it acts, pairs and triples of faults, faults that no catalogue has,
and correct ports in many styles, of the presets and of the families: the share of right judgements of each, beside its
target.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from meta.power.judgement import MEASURES, Judgement, judged, scores, wrong
from meta.power.simulated import (
    CASES,
    VIEWS,
    SimulatedPort,
    family_ports,
    further_family_ports,
    plain_ports,
    sampled,
)
from transparity_conformance.oracle.cases import MODELS as FAMILIES

KINDS_OF_PORTS = tuple(dict.fromkeys(measure.kind for measure in MEASURES))

PORTS: list[SimulatedPort] = []
"""The ports to judge, which processes inherit by number: a fault with functions in it is not pickled."""


def judgements(jobs: int) -> Iterator[Judgement]:
    """The judgement of every one of `PORTS`, in order."""
    if jobs == 1:
        yield from map(judged, PORTS)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        for port, (report, seconds, crash) in zip(PORTS, pool.map(_judged, range(len(PORTS))), strict=True):
            yield Judgement(port, report, seconds, crash)


def _judged(number: int) -> tuple[Any, float, str]:
    found = judged(PORTS[number])
    return found.report, found.seconds, found.crash


def print_failures(judgement: Judgement, console: Console) -> None:
    """Print what is wrong with a judgement at once, for all of them take long."""
    failed = [measure.title for measure in MEASURES if wrong(measure, [judgement])]
    if failed:
        text = f"not {', not '.join(failed)}: {judgement.port} → {judgement}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def table(title: str, found: Sequence[dict[str, Any]]) -> Table:
    """One row for each measure."""
    shown = Table(title=title)
    for column in ("measure", "trials", "right", "target", "slowest"):
        shown.add_column(column, justify="left" if column == "measure" else "right")
    for score in found:
        share = f"[{'green' if score['reached'] else 'red'}]{score['share']:.1%}"
        numbers = (share, f"{score['target']:.0%}", f"{score['slowest']:.1f} s")
        shown.add_row(score["measure"], str(score["trials"]), *numbers)
    return shown


def chosen_ports(options: argparse.Namespace) -> dict[str, list[SimulatedPort]]:
    """The ports that the options ask for, of the presets and of the families."""
    cases = options.case or [*CASES, *FAMILIES]
    families = [case for case in cases if case in FAMILIES]
    every = {
        "presets": list(plain_ports(tuple(case for case in cases if case in CASES), options.seed)),
        "families": [*family_ports(families), *further_family_ports(families, seed=options.seed)],
    }
    for name, ports in every.items():
        kinds, views = options.kind or KINDS_OF_PORTS, options.view or VIEWS
        found = [port for port in ports if port.kind in kinds and port.view in views]
        found = [port for port in found if all(word in str(port) for word in options.only or ())]
        every[name] = sampled(found, options.sample, options.seed) if options.sample else found
    return every


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the ports, print the shares; 1 if one is below its target."""
    parser = argparse.ArgumentParser(description="Measure the checker on ports that are known to be right or wrong.")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N ports for each measure; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the pairs")
    parser.add_argument("--case", action="append", choices=[*CASES, *FAMILIES], help="only these configurations")
    parser.add_argument("--kind", action="append", choices=KINDS_OF_PORTS, help="only ports of this kind")
    parser.add_argument("--view", action="append", choices=VIEWS, help="only ports that are seen so")
    parser.add_argument("--only", action="append", metavar="WORD", help="only ports with this in their description")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every judgement, too")
    options = parser.parse_args(arguments)
    console, report, found = Console(), dict[str, Any](), list[Judgement]()
    every = chosen_ports(options)
    PORTS[:] = [port for ports in every.values() for port in ports]
    for judgement in track(judgements(options.jobs), "checking", len(PORTS), console=console):
        print_failures(judgement, console)
        found.append(judgement)
    for name, ports in every.items():
        of_name, found = found[: len(ports)], found[len(ports) :]
        report[name] = {"measures": scores(of_name), "answers": [each.as_dict() for each in of_name]}
        if ports:
            console.print(table(f"The power of the checker: {name}", report[name]["measures"]))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all(score["reached"] for part in report.values() for score in part["measures"]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
