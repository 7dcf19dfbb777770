"""`python -m benchmarks.race`: our columns and their peers, in one interleaved run."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import Annotated, Literal

import typer
from benchmarks.environment import cores, processor
from benchmarks.race.candidates import CANDIDATES, KEPT_HEAP, Candidate, with_environment
from benchmarks.race.page import write_page
from benchmarks.race.race import Conditions, Result, race, steps
from benchmarks.race.report import as_json, missing, report_of
from benchmarks.race.standings import standings
from benchmarks.race.table import as_text
from benchmarks.workloads import WORKLOADS, Workload, default
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

app = typer.Typer(add_completion=False)


@app.command()
def main(
    workload: Annotated[list[str] | None, typer.Option(help="A name or a pattern; all but the tiny ones.")] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="A name or a pattern; all that are installed.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each candidate runs.")] = 15,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores that each may use; all at hand.")] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to compute.")] = "cpu",
    keep_heap: Annotated[bool, typer.Option(help="Have the allocator keep large blocks, for all alike.")] = False,
    output: Annotated[Path, typer.Option(help="Where the JSON, the page and the plots go.")] = Path("reports/race"),
) -> None:
    """Compare our columns and their peers with the oracle, then time them in shuffled, interleaved rounds, each in a
    process of its own."""
    workloads = [WORKLOADS[name] for name in chosen(workload, list(WORKLOADS), default(device), "workload")]
    names = [each.name for each in CANDIDATES]
    wanted = chosen(candidate, names, names, "candidate")
    candidates = [each for each in CANDIDATES if each.name in wanted or each.is_limit]
    if keep_heap:
        candidates = [with_environment(each, KEPT_HEAP) for each in candidates]
    conditions = Conditions(rounds, threads or cores(), device, keep_heap)
    run(workloads, candidates, conditions, output)


def run(
    workloads: list[Workload], candidates: list[Candidate], conditions: Conditions, output: Path, *, quiet: bool = False
) -> None:
    """Race with a progress bar; the reports are rewritten after each workload, for all of them take hours."""
    console = Console(quiet=quiet, highlight=False)
    output.mkdir(parents=True, exist_ok=True)
    console.print(f"{processor()}, {conditions.threads} threads, {conditions.memory / 1e9:.3g} GB of memory to fill")
    for line in missing(candidates):
        console.print(f"Missing: {line}")
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    results: list[Result] = []
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as progress:
        bar = progress.add_task("", total=sum(steps(each, candidates, conditions) for each in workloads))
        for number, workload in enumerate(workloads, 1):
            results += race(
                workload,
                candidates,
                conditions,
                step=lambda description: progress.update(bar, description=description, advance=1),
                told=lambda result: progress.console.print(in_one_line(result)),
            )
            report = report_of(standings(results), workloads[:number], candidates, conditions)
            (output / "race.json").write_text(as_json(report, results))
            write_page(output, report)
    console.print(as_text(report, console.width))
    console.print(f"Written: {output / 'race.json'}, {output / 'race.html'}")


def in_one_line(result: Result) -> str:
    """The first answer about a candidate: it is ready, or it is not timed."""
    name = f"{result.workload.name}: {result.candidate.name}"
    if result.failed or not result.ready:
        return f"{name}: not timed, {result.failed}"
    held = result.ready["conformity"]
    agrees = f"agrees ({held['share']:.0%} of the error budget)" if held else "not compared"
    return f"{name}: {agrees}, {result.ready['warm_seconds']:.3g} s"


def chosen(patterns: list[str] | None, names: list[str], otherwise: list[str], what: str) -> list[str]:
    """The names that match any of `patterns`; raises `typer.BadParameter` for a pattern that matches none."""
    for pattern in patterns or ():
        if not fnmatch.filter(names, pattern):
            raise typer.BadParameter(f"no {what} is called {pattern!r}; there are {', '.join(names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns or otherwise)]


if __name__ == "__main__":
    app()
