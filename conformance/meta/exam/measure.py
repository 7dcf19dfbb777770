"""The pool `exam`: bugs in other people's code, each in its own process."""

import argparse
import functools
import multiprocessing
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meta.alone import alone
from meta.exam import run
from meta.exam.bug import exam, twins
from meta.exam.rules import scores
from meta.pool.bug import Bug
from meta.pool.judge import judged
from meta.trial import Answer, Share, Trial

TIMEOUT = 900.0

IMPORTED = {"transformers": "transformers.modeling_utils"}
"""Packages that are slow to import, each with a module that all of its models import."""


def context_of(bug: Bug) -> Any:
    package, _, inside = bug.file.partition("/")
    is_imported = package in IMPORTED and not inside.startswith("models/")
    context: Any = multiprocessing.get_context("spawn" if is_imported else "forkserver")
    if not is_imported:
        context.set_forkserver_preload(["meta.exam.run", "torch", *IMPORTED.values()])
    return context


def answer_of(bug: Bug, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="exam-") as folder:
        result, why = alone(context_of(bug), TIMEOUT, run.results, bug.id, str(Path(folder).resolve()), way)
    if result is None:  # the exam itself failed, not the port
        return {"missing": f"{bug.id}: {why or 'the process ended without a result'}", "verdict": ""}
    return dict(result)


def trials(options: argparse.Namespace, way: str = "run") -> list[Trial]:
    return [Trial(bug.id, functools.partial(answer_of, bug, way), wanted=bug) for bug in exam().values()]


def choose(every: Sequence[Trial], options: argparse.Namespace) -> list[Trial]:
    """Return the bugs whose id or story contains `--only`, or at most `--sample` of these bugs; add their twins."""
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
