"""The pool `exam-against`: bugs of the exam, with the original code as the reference.

The pool has the bugs of subjects that load a folder into a PyTorch module. One process loads both the original code
and the code with the bug. Bugs that are visible only with a cache or in another configuration are left out.
"""

import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meta.exam import measure, run
from meta.exam.measure import choose
from meta.pool.bug import Bug, PoolError, changed_lines
from meta.pool.judge import answer_of, is_line, relative
from meta.trial import Answer, Measure, Trial
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.port_calls import PortError, call_port
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.oracle.probes import probe_parameters

__all__ = ["MEASURES", "choose", "line_of", "trials"]

SUBJECTS = ("hub", "by_hand", "fms_models", "litgpt_models", "scratch")
"""Subjects whose loaders return PyTorch modules."""

HIDDEN = ("with a cache", "reading the configuration", "another configuration")
"""Values of `Bug.hidden` for bugs that one forward pass cannot show."""

SHAPES = ((2, 11), (1, 1), (3, 2), (1, 16), (1, 32))
"""The shapes (batch, length) of inputs for modules that have no transformers configuration."""


def result_of(bug: Bug, folder: Path) -> dict[str, Any]:
    """Load the original and the changed code from one folder; check the changed code against the original."""
    subject = importlib.import_module(f"meta.exam.subjects.{bug.subject}")
    config, model = run.config_of(bug, subject), folder / "model"
    export_checkpoint(bug.family, config, probe_parameters(config), model)
    original = run.port_of(bug, subject)(str(model))
    if not bug.is_twin:
        forget(bug)
        patched = run.install(bug, folder)
        subject = importlib.import_module(subject.__name__)
    began = time.process_time()
    result: dict[str, Any] = {"id": bug.id, "error": "", "verdict": "", "faults": [], "audit": {}, "rules": []}
    try:
        port = call_port(run.port_of(bug, subject), str(model))
        report = check(port, against=original, inputs=_inputs(original, config))
        theirs = [fault.reference_source or {} for fault in report.faults]
        found = [{**each, "file": relative(each["file"], folder)} if each else None for each in theirs]
        result |= answer_of(report, folder) | {"theirs": found}
    except PortError as error:
        result |= {"error": str(error)}
    if not bug.is_twin and not run.is_imported(patched):
        raise PoolError(f"{bug.id}: the subject never imports {bug.file}.")
    return result | {"seconds": round(time.process_time() - began, 1)}


def forget(bug: Bug) -> None:
    """Remove from `sys.modules` the module of the changed file, and all modules that import names from this module."""
    package = bug.file.partition("/")[0]
    gone = {name for name, each in sys.modules.items() if getattr(each, "__file__", None) == str(bug.path)}
    if not bug.file.startswith("transformers/models/"):  # no other module imports names from a model's file
        gone |= {name for name in sys.modules if name.partition(".")[0] == package}
    gone.add(f"meta.exam.subjects.{bug.subject}")
    for each in list(sys.modules.values()):
        for name, value in list(vars(each).items()) if type(each).__name__ == "_LazyModule" else ():
            if getattr(value, "__module__", None) in gone or getattr(value, "__name__", None) in gone:
                delattr(each, name)
    for name in gone:
        sys.modules.pop(name, None)


def _inputs(model: Any, config: TransformerConfig) -> list[Mapping[str, np.ndarray]] | None:
    if hasattr(model, "main_input_name"):
        return None
    name, draw = next(iter(inspect.signature(model.forward).parameters)), np.random.default_rng(0)
    shapes = [(batch, min(length, config.max_length)) for batch, length in SHAPES]
    return [{name: draw.integers(3, config.vocab_size, shape)} for shape in shapes]


def trials(options: Any) -> list[Trial]:
    every = measure.trials(options, "against")
    asked = [each for each in every if each.wanted.subject in SUBJECTS and each.wanted.hidden not in HIDDEN]
    return [each for each in asked if "cached" not in each.wanted.port]


def is_right_line(bug: Bug, answer: Answer) -> bool:
    """Return whether the port's reported line is right, or the original's reported line is a line that the bug
    changes."""
    first, theirs = answer["faults"][0], (answer["theirs"] or [None])[0]
    if is_line(bug, first):
        return True
    lines = changed_lines(bug.text(), bug.path.read_text(encoding="utf-8"))
    return theirs is not None and theirs["file"] == bug.file and theirs["line"] in lines


def line_of(trial: Trial, answer: Answer) -> str:
    if "missing" in answer:
        return f"no result: {answer['missing']}"
    if not answer["faults"]:
        return f"{trial}: {answer['verdict'] or answer['error']}; {trial.wanted.story}"
    line = "right line" if trial.wanted.control or is_right_line(trial.wanted, answer) else "another line"
    source = answer["faults"][0]["source"] or {"line": 0, "code": ""}
    causes = [cause["says"] for fault in answer["faults"] for cause in fault["causes"]]
    told = "; ".join(causes) or "unexplained"
    return (
        f"{trial} ({answer['seconds']} s): {trial.wanted.story}\n    {line} {source['line']} `{source['code']}`: {told}"
    )


def _of(
    title: str, right: Callable[[Bug, Answer], bool | None], target: float = 0.0, *, control: bool = False
) -> Measure:
    """Return a measure of the checker's answers about bugs, or about controls and twins."""

    def judge(trial: Trial, answer: Answer) -> bool | None:
        return right(trial.wanted, answer) if "missing" not in answer and trial.wanted.control == control else None

    return Measure(title, judge, target)


def _of_located(title: str, right: Callable[[Bug, Answer], bool], target: float = 0.0) -> Measure:
    """Return a measure of the answers that report a divergence, without bugs in loaders that lead to no wrong line of
    the model."""
    return _of(
        title, lambda bug, it: right(bug, it) if it["faults"] and (bug.uses or not bug.is_in_loader) else None, target
    )


MEASURES = (
    Measure("trials with a result", lambda _, answer: "missing" not in answer, 1.0),
    _of("detected", lambda _, answer: answer["verdict"] == "diverges" or bool(answer["error"]), 0.97),
    _of_located("right line, in the port or the original", is_right_line, 0.85),
    _of_located("right line, in the port", lambda bug, answer: is_line(bug, answer["faults"][0])),
    _of_located("explained by edits", lambda _, answer: all(fault["causes"] for fault in answer["faults"])),
    _of("controls and twins accepted", lambda _, answer: answer["verdict"] == "agrees", 1.0, control=True),
)
