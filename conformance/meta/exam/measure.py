"""Take the exam: `python -m meta.exam.measure [--only WORD] [--jobs N] [--cache FOLDER] [--again WORD]`.

Each bug runs in a process of its own, and its result is kept: an interrupted exam goes on where it was. A result is
used again as long as its bug, its subject and the checker are what they were (`--keep`: whatever the checker is).
`python -m meta.exam.page --cache FOLDER` then takes the results into docs/exam.json, and writes docs/exam.md.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import transparity_conformance
from meta.exam.bug import Bug, exam, twins_by_bug
from meta.exam.judge import Judged, judged
from meta.exam.scores import TARGETS, scores

CACHE = Path("reports/exam")
TIMEOUT = 900.0
"""Seconds that one bug may take."""


@functools.cache
def checker() -> str:
    """A digest of the checker and the reference."""
    root = Path(transparity_conformance.__file__).parents[2]
    found = hashlib.sha256()
    for package in ("conformance/transparity_conformance", "reference"):
        for path in sorted((root / package).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:16]


def kept(bug: Bug, cache: Path, *, whatever_checker: bool = False) -> dict[str, Any] | None:
    """The result in the cache, unless it is of another bug, subject or checker."""
    file = cache / f"{bug.id}.json"
    if not file.is_file():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    is_same = result["digest"] == bug.digest() and (whatever_checker or result["checker"] == checker())
    return result if is_same else None


def taken(bug: Bug, cache: Path) -> dict[str, Any]:
    """Run a bug in a process of its own, and keep the result."""
    with tempfile.TemporaryDirectory(prefix="exam-") as folder:
        command = [sys.executable, "-m", "meta.exam.run", bug.id, str(Path(folder).resolve())]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT)
            said = (ended.stderr.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        except subprocess.TimeoutExpired:
            said = f"no answer within {TIMEOUT:g} s"
        file = Path(folder, "result.json")
        if not file.is_file():  # the exam itself failed, which is no answer
            raise RuntimeError(f"{bug.id}: {said}")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    result |= {"digest": bug.digest(), "checker": checker()}
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"{bug.id}.json").write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    return result


def results(bugs: Sequence[Bug], options: argparse.Namespace) -> Iterator[tuple[Bug, dict[str, Any] | None, str]]:
    """Each bug with its result, or with the reason why there is none."""

    def one(bug: Bug) -> tuple[Bug, dict[str, Any] | None, str]:
        found = None if bug in again else kept(bug, options.cache, whatever_checker=options.keep)
        try:
            return bug, found or taken(bug, options.cache), ""
        except RuntimeError as error:
            return bug, None, str(error)

    again = [bug for bug in bugs if options.again is not None and options.again in bug.id]
    with ThreadPoolExecutor(options.jobs) as pool:
        yield from pool.map(one, bugs)


def table(bugs: Sequence[Bug], found: Sequence[Judged]) -> Table:
    """One row for each bug."""
    shown = Table(title="The exam")
    for column in ("bug", "found by", "placed", "named", "line", "rules", "answer"):
        shown.add_column(column)
    marks = {True: "yes", False: "[red]no[/]", None: "–"}
    for bug, each in zip(bugs, found, strict=True):
        missed = "[red]no[/]" if not bug.control else "–"
        way = f"[red]{each.detected}[/]" if bug.control and each.detected else each.detected or missed
        named = "–" if bug.control else f"[red]{each.falsely[0]}[/]" if each.falsely else marks[each.named]
        row = (way, marks[each.placed], named, marks[each.line], str(len(each.rules)), each.says[:110])
        shown.add_row(bug.id, *row)
    return shown


def chosen(word: str) -> list[Bug]:
    """The bugs with a word in their id or story, and their twins."""
    by_id = exam()
    twins = twins_by_bug(list(by_id.values()))
    found = {bug.id for bug in by_id.values() if word in bug.id or word in bug.story}
    return [bug for bug in by_id.values() if bug.id in found | {twins[name] for name in found}]


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the exam and print its table and shares; 1 if one is below its target."""
    parser = argparse.ArgumentParser(description="Measure what the checker finds of bugs in other people's code.")
    parser.add_argument("--only", default="", metavar="WORD", help="only bugs with this in their id or story")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="FOLDER", help="where results are kept")
    parser.add_argument("--keep", action="store_true", help="use results of another checker, too")
    parser.add_argument("--again", metavar="WORD", help="run bugs with this in their id anew")
    options = parser.parse_args(arguments)
    console = Console(width=200)
    by_id: dict[str, dict[str, Any]] = {}
    failures = 0
    for bug, result, why in results(chosen(options.only), options):
        if result is None:
            failures += 1
            console.print(f"no result: {why}", style="red", markup=False)
        else:
            by_id[bug.id] = result
            console.print(f"{bug.id}: {judged(bug, result).says}", highlight=False, markup=False, soft_wrap=True)
    bugs = [exam()[name] for name in by_id]
    twins = twins_by_bug(list(exam().values()))
    found = [judged(bug, by_id[bug.id], by_id.get(twins[bug.id])) for bug in bugs]
    console.print(table(bugs, found))
    shares = scores(bugs, found)
    for share in shares:
        console.print(str(share), highlight=False)
    return int(failures > 0 or any(not share.is_reached for share in shares if share.title in TARGETS))


if __name__ == "__main__":
    raise SystemExit(main())
