"""The pool `against`: mutants and twins, each checked against its original.

The original is the transformers class whose file the port copies. Mutants are created for families without
mutants in `--pool-folder`.
"""

import argparse
import ast
import difflib
import functools
import json
import re
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from meta.against.copies import FAMILIES
from meta.against.mutants import write_pool
from meta.trial import Answer, Measure, Trial
from transparity_conformance import check
from transparity_conformance.against.check import from_transformers
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_port

BUDGET = 8.0
"""The processor seconds for searching edits that explain a difference."""


def judged(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    model, port = original(folder / "model"), folder / row["id"] / "port.py"
    torch.set_num_threads(1)
    begun = time.process_time()  # other processes do not change the processor time
    made = load_port(f"{port}:load")(str(folder / "model"))
    report = check(made, against=model, budget=BUDGET, name=f"{folder.name} {row['id']}")
    seconds = time.process_time() - begun
    theirs = Path(sys.modules[type(model).__module__].__file__ or "")
    return {
        "verdict": report.verdict,
        "lines": _lines(report, port, theirs),
        "use": sorted(lines_of_use(port.read_text(encoding="utf-8"), *row["statement"])),
        "causes": [cause.says for fault in report.faults for cause in fault.causes],
        "faults": len(report.faults),
        "unexplained": sum(not fault.causes for fault in report.faults),
        "seconds": round(seconds, 1),
    }


@functools.cache
def original(folder: Path) -> Any:
    return from_transformers(folder)


def _lines(report: Report, port: Path, theirs: Path) -> list[int]:
    """Return the lines of the first fault in the port's file; a line of the original is mapped to the port's lines."""
    if not report.faults:
        return []
    fault, found = report.faults[0], []
    if fault.source is not None and Path(fault.source["file"]).resolve() == port.resolve():
        found.append(fault.source["line"])
    if fault.reference_source is not None and Path(fault.reference_source["file"]) == theirs:
        found += _in_port(theirs, port).get(fault.reference_source["line"], [])
    return found


def _in_port(theirs: Path, port: Path) -> dict[int, list[int]]:
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (theirs, port))
    found: dict[int, list[int]] = {}
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(a, b):
            found[place + 1] = [c + place - a + 1] if kind == "equal" else list(range(c + 1, d + 1))
    return found


def lines_of_use(text: str, first: int, last: int) -> set[int]:
    """Return the lines that read a name, attribute or argument that lines `first` to `last` set. If these lines return
    from a function, also return the lines that call this function."""
    tree = ast.parse(text)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    around = [node for node in functions if node.lineno <= first <= (node.end_lineno or 0)]
    if not around:
        return set()
    function = max(around, key=lambda node: node.lineno)
    inside = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and first <= node.lineno <= last]
    names = {
        node.id
        for statement in inside
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    used = _readers(function, names, last)
    if attribute := re.match(r"\s*(self\.\w+) = ", text.splitlines()[first - 1]):  # an attribute of a module
        pattern = rf"(?<!\w){re.escape(attribute[1])}\b(?! =)"
        used |= {number for number, line in enumerate(text.splitlines(), 1) if re.search(pattern, line)}
    if argument := re.match(r"\s*(\w+)=", text.splitlines()[first - 1]):  # a keyword argument of a call
        used |= {line for each in functions for line in _readers(each, {argument[1]}, 0)}
    if any(isinstance(statement, ast.Return) for statement in inside):
        called = {function.name} | _classes_of(tree, function)
        used |= {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) & called}
    return used


def _readers(function: ast.FunctionDef, names: set[str], last: int) -> set[int]:
    found = set()
    for statement in ast.walk(function):
        if isinstance(statement, ast.stmt) and statement.lineno > last and not hasattr(statement, "body"):
            reads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if reads & names:
                found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def _classes_of(tree: ast.Module, function: ast.FunctionDef) -> set[str]:
    owners = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and function in node.body}
    return {
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _called(node.value) & owners
        for target in node.targets
        if isinstance(target, ast.Attribute)
    }


def _called(node: ast.Call) -> set[str]:
    return {getattr(node.func, "id", ""), getattr(node.func, "attr", "")} - {""}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool-folder", type=Path, default=Path("reports/against"))
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--mutants", type=int, default=12, metavar="N", help="write N mutants of each family")


def trials(options: argparse.Namespace) -> list[Trial]:
    """Return a trial for each mutant and twin of the chosen families; a trial's `wanted` has its changed lines."""
    found = []
    for name in sorted(options.families):
        folder = options.pool_folder / name
        if not (folder / "mutants.json").is_file():
            write_pool(name, options.pool_folder, options.mutants, options.seed)
        for row in json.loads((folder / "mutants.json").read_text(encoding="utf-8")):
            first, last = row["statement"]
            kind = "twin" if row["twin"] else "mutant"
            found.append(Trial(f"{name} {row['id']}", partial(judged, folder, row), kind, range(first, last + 1)))
    return found


def line_of(trial: Trial, answer: Answer) -> str:
    is_twin = trial.kind == "twin"
    is_right = answer["verdict"] == ("agrees" if is_twin else "diverges")
    if is_right and (is_twin or (_is_near(trial, answer) and not answer["unexplained"])):
        return ""
    causes = answer["causes"] or "no cause"
    return f"{trial}: {answer['verdict']}, line {trial.wanted.start} reported as {answer['lines']}, {causes}"


def _is_near(trial: Trial, answer: Answer) -> bool:
    return _is_line(trial, answer) or bool(set(answer["lines"]) & set(answer["use"]))


def _is_line(trial: Trial, answer: Answer) -> bool:
    return any(line in trial.wanted for line in answer["lines"])


MEASURES = (
    Measure("mistakes detected", lambda _, answer: answer["verdict"] == "diverges", 1.0, "mutant"),
    Measure("the line, or a line that uses its result, reported first", _is_near, 0.9, "mutant"),
    Measure("the first reported line is the mutated line", _is_line, kind="mutant"),
    Measure(
        "explained by edits, on all probes", lambda _, it: bool(it["causes"]) and not it["unexplained"], 0.6, "mutant"
    ),
    Measure("twins that agree", lambda _, answer: answer["verdict"] == "agrees", 1, "twin"),
    Measure("under 5 s of processor time, without imports", lambda _, answer: answer["seconds"] < 5),
)
