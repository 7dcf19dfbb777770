"""The pool `exam`: each bug runs in its own process, and its result is stored.

An interrupted exam continues where it stopped. A result is reused as long as its bug, its subject and the checker
are unchanged. With `--keep`, results of other versions of the checker are reused, too.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transparity_conformance
from meta.exam import run
from meta.exam.bug import exam, twins
from meta.exam.rules import scores
from meta.pool.bug import Bug, PoolError
from meta.pool.judge import judged
from meta.trial import Answer, Share, Trial
from transparity_conformance.cache import digest

TIMEOUT = 900.0
"""The seconds that one bug may take."""

IMPORTED = {"transformers": "transformers.modeling_utils"}
"""Packages that are slow to import, each with a module that all of its models import."""


@functools.cache
def checker() -> str:
    root = Path(transparity_conformance.__file__).parents[2]
    folders = (root / package for package in ("conformance/transparity_conformance", "reference"))
    paths = [path for folder in folders for path in sorted(folder.rglob("*.*")) if path.suffix in (".py", ".toml")]
    return digest(*(path.read_bytes() for path in paths))[:16]


def kept(bug: Bug, cache: Path, *, whatever_checker: bool = False) -> dict[str, Any] | None:
    """Return the stored result of a bug. Return None if the bug, the subject or the checker has changed."""
    file = cache / f"{bug.id}.json"
    if not file.is_file():
        return None
    result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    is_same = result["digest"] == bug.digest() and (whatever_checker or result["checker"] == checker())
    return result if is_same else None


def taken(bug: Bug, cache: Path, way: str = "run") -> dict[str, Any]:
    """Run a bug in its own process, and store the result; raise `PoolError` if there is no result."""
    with tempfile.TemporaryDirectory(prefix="exam-") as folder:
        process = _process(bug, str(Path(folder).resolve()), way)
        process.start()
        process.join(TIMEOUT)
        file = Path(folder, "result.json")
        if process.is_alive() or not file.is_file():
            process.kill()
            raise PoolError(f"{bug.id}: the process died or took longer than {TIMEOUT:g} s")
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "failed" in result:  # the exam itself failed, not the port
        raise PoolError(f"{bug.id}: {result['failed']}")
    result |= {"digest": bug.digest(), "checker": checker()}
    cache.mkdir(parents=True, exist_ok=True)
    (cache / f"{bug.id}.json").write_text(json.dumps(result, ensure_ascii=False, indent=1), encoding="utf-8")
    return result


def _process(bug: Bug, folder: str, way: str) -> Any:
    """Return the process for a bug: a fork with slow modules imported, or a new one if the bug is in a slow module."""
    package, _, inside = bug.file.partition("/")
    is_imported = package in IMPORTED and not inside.startswith("models/")
    context: Any = multiprocessing.get_context("spawn" if is_imported else "forkserver")
    if not is_imported:
        context.set_forkserver_preload(["meta.exam.run", "torch", *IMPORTED.values()])
    return context.Process(target=run.main, args=(bug.id, folder, way))


def answer_of(bug: Bug, options: argparse.Namespace, way: str) -> dict[str, Any]:
    """Return the stored result of a bug, or run the bug; `way` is the module of `meta.exam` that runs the checker."""
    is_run_again = options.again is not None and options.again in bug.id
    found = None if is_run_again else kept(bug, options.cache, whatever_checker=options.keep)
    try:
        return found or taken(bug, options.cache, way)
    except PoolError as error:
        return {"missing": str(error), "verdict": ""}


def add_options(parser: argparse.ArgumentParser) -> None:
    cache = Path("reports/exam")
    parser.add_argument("--cache", type=Path, default=cache, metavar="FOLDER", help="where the exam stores its results")
    parser.add_argument("--keep", action="store_true", help="also reuse results of another version of the checker")
    parser.add_argument("--again", metavar="WORD", help="run bugs again whose id contains this word")


def trials(options: argparse.Namespace, way: str = "run") -> list[Trial]:
    return [Trial(bug.id, functools.partial(answer_of, bug, options, way), wanted=bug) for bug in exam().values()]


def choose(every: Sequence[Trial], options: argparse.Namespace) -> list[Trial]:
    """Return the bugs whose id or story contains `--only`, or a sample of these bugs, followed by their twins."""
    word = options.only
    found = [bug.id for bug in exam().values() if word in bug.id or word in bug.story]
    if options.sample:
        found = random.Random(options.seed).sample(found, min(options.sample, len(found)))
    wanted = {*found, *(twins()[name] for name in found)}
    return [trial for trial in every if trial.wanted.id in wanted]


def line_of(trial: Trial, answer: Answer) -> str:
    if "missing" in answer:
        return f"no result: {answer['missing']}"
    each = judged(trial.wanted, answer)
    marks = {True: "yes", False: "no", None: "–"}
    named = f"falsely {each.falsely[0]}" if each.falsely else marks[each.named]
    found = (
        f"detected by {each.detected or 'nothing'}, placed {marks[each.placed]}, named {named}, line {marks[each.line]}"
    )
    return f"{trial}: {'control, ' if each.control else ''}{found}, {len(each.rules)} rules; {each.says}"


def shares(found: Sequence[tuple[Trial, Answer]]) -> list[Share]:
    by_id = {trial.wanted.id: answer for trial, answer in found if "missing" not in answer}
    # audit findings that the bug's twin also has do not count
    return scores([vars(judged(exam()[name], by_id[name], by_id.get(twins()[name]))) for name in by_id])
