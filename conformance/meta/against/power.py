"""The pool `against`: mutants and twins, each checked against its original.

The original is the class of transformers from which the port was copied. Write the mutants with
`python -m meta.against.mutants --out FOLDER`, and pass the same folder as `--pool-folder`.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import functools
import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meta.trial import Answer, Measure
from transparity_conformance import check
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_port

BUDGET = 8.0
"""The processor seconds that the checker may spend on searching for edits that explain a difference."""


@dataclass(frozen=True)
class Mutant:
    """A trial: a mutant, or a twin if `is_twin`, is checked against its original."""

    folder: Path
    family: str
    id: str
    line: int
    last: int
    """The last line of the mutated statement."""
    is_twin: bool

    def __str__(self) -> str:
        return f"{self.family} {self.id}"

    def run(self) -> dict[str, Any]:
        """Check the port against its original."""
        model = original(self.folder / self.family / "model")
        port = self.folder / self.family / self.id / "port.py"
        torch.set_num_threads(1)
        begun = time.process_time()  # other processes do not change the processor time
        made = load_port(f"{port}:load")(str(self.folder / self.family / "model"))
        report = check(made, against=model, budget=BUDGET, name=str(self))
        seconds = time.process_time() - begun
        theirs = Path(sys.modules[type(model).__module__].__file__ or "")
        return {
            "verdict": report.verdict,
            "lines": _lines(report, port, theirs),
            "use": sorted(lines_of_use(port.read_text(encoding="utf-8"), self.line, self.last)),
            "causes": [cause.says for fault in report.faults for cause in fault.causes],
            "faults": len(report.faults),
            "unexplained": sum(not fault.causes for fault in report.faults),
            "seconds": round(seconds, 1),
        }


@functools.cache
def original(folder: Path) -> Any:
    """Load the original model of a folder with transformers."""
    from transparity_conformance.against.check import from_transformers

    return from_transformers(folder)


def _lines(report: Report, port: Path, theirs: Path) -> list[int]:
    """Return the lines that the first fault reports in the port and in the original, as lines of the port's file."""
    if not report.faults:
        return []
    fault, found = report.faults[0], []
    if fault.source is not None and Path(fault.source["file"]) == port:
        found.append(fault.source["line"])
    if fault.reference_source is not None and Path(fault.reference_source["file"]) == theirs:
        found += _in_port(theirs, port).get(fault.reference_source["line"], [])
    return found


def _in_port(theirs: Path, port: Path) -> dict[int, list[int]]:
    """Return the port's lines for each line of the original, from a diff of the two files."""
    old, new = (path.read_text(encoding="utf-8").splitlines() for path in (theirs, port))
    found: dict[int, list[int]] = {}
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        for place in range(a, b):
            found[place + 1] = [c + place - a + 1] if kind == "equal" else list(range(c + 1, d + 1))
    return found


def lines_of_use(text: str, first: int, last: int) -> set[int]:
    """Return the lines that use the result of a statement.

    These lines read the names or the attribute that the statement assigns. If the statement is a `return`, they call
    the function. If it is a keyword argument, they read the parameter of that name.
    """
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
    """Return the lines after `last` whose statements read one of the names."""
    found = set()
    for statement in ast.walk(function):
        if isinstance(statement, ast.stmt) and statement.lineno > last and not hasattr(statement, "body"):
            reads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
            if reads & names:
                found |= set(range(statement.lineno, (statement.end_lineno or 0) + 1))
    return found


def _classes_of(tree: ast.Module, function: ast.FunctionDef) -> set[str]:
    """Return the attributes to which the class that defines `function` is assigned."""
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


def trials(options: argparse.Namespace) -> list[Mutant]:
    found = []
    for file in sorted(options.pool_folder.glob("*/mutants.json")):
        for row in json.loads(file.read_text(encoding="utf-8")):
            first, last = row["statement"]
            found.append(Mutant(options.pool_folder, row["family"], row["id"], first, last, row["twin"]))
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pool-folder", type=Path, default=Path("reports/against"))


def line_of(trial: Mutant, answer: Answer) -> str:
    """Return the line to print for a wrong result."""
    is_right = answer["verdict"] == ("agrees" if trial.is_twin else "diverges")
    if is_right and (trial.is_twin or (_is_near(trial, answer) and not answer["unexplained"])):
        return ""
    causes = answer["causes"] or "no cause"
    return f"{trial}: {answer['verdict']}, line {trial.line} reported as {answer['lines']}, {causes}"


def _is_near(trial: Mutant, answer: Answer) -> bool:
    """Return whether a reported line is the mutated line, or uses its result."""
    return _is_line(trial, answer) or bool(set(answer["lines"]) & set(answer["use"]))


def _is_line(trial: Mutant, answer: Answer) -> bool:
    return any(trial.line <= line <= trial.last for line in answer["lines"])


def _of_mutants(judge: Any) -> Any:
    return lambda trial, answer: None if trial.is_twin else judge(trial, answer)


MEASURES: Sequence[Measure] = (
    Measure("mistakes detected", _of_mutants(lambda _, answer: answer["verdict"] == "diverges"), 1.0),
    Measure("the line, or a line that uses its result, reported first", _of_mutants(_is_near), 0.9),
    Measure("the mutated line itself reported first", _of_mutants(_is_line)),
    Measure(
        "explained by edits, on all probes",
        _of_mutants(lambda _, answer: bool(answer["causes"]) and not answer["unexplained"]),
        0.6,
    ),
    Measure("twins that agree", lambda trial, answer: answer["verdict"] == "agrees" if trial.is_twin else None, 1),
    Measure("under 5 s of processor time, without imports", lambda _, answer: answer["seconds"] < 5),
)
