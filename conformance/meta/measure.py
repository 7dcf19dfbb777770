"""Measure the checker on planted bugs and right ports: `python -m meta.measure [--pool NAME] [--sample N] …`.

The docstring of a pool's module describes its trials; `--pool NAME --help` prints it.
"""

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from meta.trial import Share, Trial, chosen
from meta.trial import shares as counted
from transparity_conformance.cache import digest

ROOT = Path(__file__).parents[2]

POOLS = {
    "independent": "meta.pool.trials",
    "drafts": "meta.against.drafts.measure",
    "exam": "meta.exam.measure",
    "exam-against": "meta.exam.against",
    "attacks": "meta.attacks.run",
    "audits": "meta.audits.measure",
    "adapting": "meta.adapting.measure",
    "adapters": "meta.adapting.measure",
    "fitting": "meta.fitting.measure",
    "alignment": "meta.listening.alignment",
    "listening": "meta.listening.cost",
    "timing": "meta.timing",
    "modules": "meta.modules.measure",
    "ranks": "meta.ranks.measure",
    "fuzz": "meta.fuzz.campaign",
    "against": "meta.against.power",
    "breadth": "meta.against.breadth",
    "mutants": "meta.mutation.mutate",
    "equivalents": "meta.mutation.equivalents",
}
"""The module of each pool. Each module defines `trials(options)` and `MEASURES`. A module may also define
`add_options(parser)`, `choose(trials, options)`, `line_of(trial, answer)` for the printed line of an answer, and
`shares(answered)` in place of `MEASURES`."""

TRIALS: list[Trial] = []
"""The trials to run; worker processes inherit this list and receive an index."""


def answers(jobs: int) -> Iterator[dict[str, Any]]:
    if jobs == 1:
        yield from map(_run, range(len(TRIALS)))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(_run, range(len(TRIALS)))


def _run(number: int) -> dict[str, Any]:
    began = time.perf_counter()
    found = TRIALS[number].run()
    return {"seconds": round(time.perf_counter() - began, 1)} | found


def code() -> str:
    paths = sorted(path for name in ("conformance", "reference") for path in (ROOT / name).rglob("*.*"))
    return digest(*(path.read_bytes() for path in paths if path.suffix in (".py", ".toml")))[:16]


def resumed(file: Path, version: str) -> dict[str, dict[str, Any]]:
    """Return the answers in `file` that this `version` of the code gave, by trial."""
    rows = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
    return {
        row["trial"]: row["answer"] for row in rows if row.get("code") == version and "missing" not in row["answer"]
    }


def line_of(trial: Trial, answer: dict[str, Any]) -> str:
    told = ", ".join(f"{name} {value}" for name, value in answer.items() if name != "seconds" and value not in ("", []))
    return f"{trial} ({answer['seconds']:.1f} s): {told}"


def table(title: str, shares: Sequence[Share]) -> Table:
    shown = Table("measure", "right", "of", "share", "wanted", title=title)
    for each in shares:
        share = f"[{'green' if each.is_reached else 'red'}]{each.right / max(each.of, 1):.1%}"
        shown.add_row(each.title, str(each.right), str(each.of), share, f"{each.target:.0%}" if each.target else "")
    return shown


def parsed(arguments: Sequence[str] | None) -> tuple[Any, argparse.Namespace]:
    """Return the pool's module and the options, to which the pool may add its own."""
    parser = argparse.ArgumentParser()
    first = argparse.ArgumentParser(add_help=False)
    for each in (first, parser):
        each.add_argument("--pool", choices=POOLS, default="independent")
    pool = importlib.import_module(POOLS[first.parse_known_args(arguments)[0].pool])
    parser.description = pool.__doc__
    parser.add_argument(
        "--sample",
        type=int,
        metavar="N",
        help="run at most N trials; in the pool `independent`, run at most N trials of each kind and view",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample and of random trials")
    parser.add_argument("--only", default="", metavar="WORD", help="run only trials whose description contains WORD")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all answers to this file")
    parser.add_argument("--resume", action="store_true", help="reuse the answers in the file that this code gave")
    if hasattr(pool, "add_options"):
        pool.add_options(parser)
    return pool, parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials, and print their answers and the table of shares. Return 1 if a share is below its target, or if
    an answer is missing."""
    pool, options = parsed(arguments)
    console, version = Console(width=200, highlight=False), code()
    every = getattr(pool, "choose", chosen)(pool.trials(options), options)
    known = resumed(options.json, version) if options.resume else {}
    TRIALS[:] = [trial for trial in every if str(trial) not in known]
    found: list[tuple[Any, dict[str, Any]]] = []
    new = answers(options.jobs)
    for trial in every:
        answer = known[str(trial)] if str(trial) in known else next(new)
        found.append((trial, answer))
        if line := getattr(pool, "line_of", line_of)(trial, answer):
            console.print(line, soft_wrap=True, markup=False)
        known |= {str(trial): answer}
        if options.json:  # write after each answer, because some pools take hours
            rows = [{"trial": name, "code": version, "answer": x} for name, x in known.items()]
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(rows, indent=1, default=str))
    shares = pool.shares(found) if hasattr(pool, "shares") else counted(pool.MEASURES, found)
    console.print(table(f"The power of the checker: {options.pool}", shares))
    seconds = [answer["seconds"] for _, answer in found if "seconds" in answer] or [0.0]
    console.print(f"{len(found)} trials; seconds: median {statistics.median(seconds):.1f}, at most {max(seconds):.1f}")
    inert = sum(answer.get("verdict") == "inert" for _, answer in found)
    if inert:
        console.print(f"{inert} trials change nothing and do not count")
    return int(any(answer.get("missing") for _, answer in found) or not all(share.is_reached for share in shares))


if __name__ == "__main__":
    raise SystemExit(main())
