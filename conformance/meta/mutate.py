"""Mutation testing: every line of a column made wrong by rote, and the suite asked whether it notices.

    python conformance/meta/mutate.py transparity_pytorch

Each mutant changes one operator, number, comparison, name or argument of one of the files that every column has,
and is killed by the first claim that fails (drawn configurations come last). The survivors are printed: each is a
mutant that means the same, or a hole.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from meta.planting import FILES, REFERENCE_COLUMN, as_reference, column_path, planted
from meta.test_plants import DRAWN, caught
from transparity.backend import Backend
from transparity_conformance.backends import backend
from transparity_conformance.claims import all_claims

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult}
OPERATORS |= {ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Mod: ast.Add, ast.FloorDiv: ast.Mult}
COMPARISONS = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
TWINS = {
    "query": "key",
    "key": "value",
    "value": "query",
    "up": "down",
    "down": "up",
    "weight": "bias",
    "bias": "weight",
}
TWINS |= {"sin": "cos", "cos": "sin", "mean": "sum", "sum": "mean", "source": "target", "target": "source"}
TWINS |= {
    "head_dim": "embed_dim",
    "embed_dim": "head_dim",
    "queries": "keys",
    "min": "max",
    "max": "min",
    "running_mean": "running_var",
}

ABOUT = {"positions": "families", "head": "families", "transformer": "forward", "rounding": "precision"}
ABOUT |= {"cache": "decoding", "beams": "generation"}
"""The topic of the claims about a file, where it is not called as the file is: those are asked first."""

COMMUTATIVE = {"transpose", "swapaxes", "max", "min", "maximum", "minimum", "promote_types"}
"""Calls that mean the same with their arguments exchanged: such a mutant is none."""


@dataclass(frozen=True)
class Mutant:
    """One file of a column with one node of it changed."""

    file: str
    line: int
    change: str
    source: str


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(text)
    annotated = [node.annotation for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    unread = {id(node) for annotation in annotated for node in ast.walk(annotation)}
    for index, node in enumerate(ast.walk(tree)):
        for variant in range(4):
            if id(node) in unread or not mutate(copy.copy(node), variant):
                continue
            before, changed = _shown(node), copy.deepcopy(tree)
            target = next(found for position, found in enumerate(ast.walk(changed)) if position == index)
            mutate(target, variant)
            ast.fix_missing_locations(changed)
            line = getattr(node, "lineno", 0)
            if _is_code(tree, line) and (after := _shown(target)) != before:
                yield Mutant(file, line, f"{before}  →  {after}", ast.unparse(changed))


def mutate(node: ast.AST, variant: int) -> bool:
    """Make `node` wrong in its `variant`-th way; False if it has none. A `device` is left: there may be but one."""
    match node:
        case ast.BinOp(op=op) if variant == 0 and type(op) in OPERATORS:
            node.op = OPERATORS[type(op)]()
        case ast.Compare(ops=[op]) if variant == 0 and type(op) in COMPARISONS:
            node.ops = [COMPARISONS[type(op)]()]
        case ast.UnaryOp(operand=operand) if variant == 0 and not isinstance(operand, ast.Constant):
            node.op = ast.UAdd()
        case ast.IfExp() if variant == 0:
            node.body, node.orelse = node.orelse, node.body
        case ast.If() if variant == 0:
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool(value)) if variant == 0:
            node.value = not value
        case ast.Constant(value=int() | float() as value) if variant == 0:
            node.value = value + 1 if isinstance(value, int) else value * 2
        case ast.Attribute(attr=name) if variant == 0 and name in TWINS:
            node.attr = TWINS[name]
        case ast.Name(id=name) if variant == 0 and name in TWINS and isinstance(node.ctx, ast.Load):
            node.id = TWINS[name]
        case ast.Call(args=[first, second, *rest]) if variant == 0 and not (
            isinstance(second, ast.Starred) or ast.unparse(node.func).rpartition(".")[2] in COMMUTATIVE
        ):
            node.args = [second, first, *rest]
        case ast.Call(keywords=[first, *rest]) if variant == 1 and first.arg != "device":
            node.keywords = rest
        case ast.Call(keywords=[_, *_, last]) if variant == 2 and last.arg != "device":
            node.keywords = node.keywords[:-1]
        case ast.Return(value=ast.BinOp(left=left)) if variant == 0:
            node.value = left
        case _:
            return False
    return True


def _shown(node: ast.AST) -> str:
    try:
        return ast.unparse(node).splitlines()[0][:90]
    except (AttributeError, IndexError):
        return ""


def _is_code(tree: ast.Module, line: int) -> bool:
    """Whether a line is what runs: not an import, not an annotation or a default of a signature, not an assertion."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert) and node.lineno <= line <= (node.end_lineno or 0):
            return False
        if isinstance(node, ast.FunctionDef) and node.lineno <= line < node.body[0].lineno:
            return False
    return line > 0


def killer(column: str, mutant: Mutant, *, quick: bool) -> str | None:
    """The first claim that notices, or None; of the `quick` ones alone."""
    names = sorted(
        (
            name
            for name, claim in all_claims().items()
            if not (claim.needs and column != REFERENCE_COLUMN) and not (quick and not claim.quick)
        ),
        key=lambda name: (
            not name.startswith(f"{ABOUT.get(mutant.file, mutant.file)}."),
            not all_claims()[name].quick,
            name.startswith(("documents.printed", "metamorphic")),
        ),
    )
    try:
        with planted(column, mutant.file, mutant.source) as build, ExitStack() as stack:
            subjects: list[Backend] = [build]
            if column == REFERENCE_COLUMN:
                stack.enter_context(as_reference(build))
                subjects.append(backend("pytorch"))  # which is right: what disagrees with it is the mutant
            for name in names if quick else (*names, DRAWN):
                for subject in subjects:
                    of_it = name == DRAWN or all_claims()[name].of_reference or subject.name != "numpy"
                    if of_it and not (name == DRAWN and subject.name == "numpy") and caught(name, subject):
                        return name
    except Exception as error:  # noqa: BLE001 - a mutant that cannot even be imported is noticed by everybody
        return f"import: {type(error).__name__}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("column")
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--sample", type=int, help="how many mutants are drawn from all of them (default: all)")
    parser.add_argument("--quick", action="store_true", help="ask the quick claims alone: what survives may be noticed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console, killed, survivors, started = Console(), 0, [], time.monotonic()
    texts = {file: (column_path(options.column) / f"{file}.py").read_text() for file in options.files}
    chosen = [mutant for file, text in texts.items() for mutant in mutants(file, text)]
    if options.sample and options.sample < len(chosen):
        chosen = random.Random(0).sample(chosen, options.sample)
    for mutant in chosen:
        by = killer(options.column, mutant, quick=options.quick)
        killed += by is not None
        if by is None:
            survivors.append(f"{mutant.file}.py:{mutant.line}: {mutant.change}")
            console.print(f"[yellow]survived[/] {survivors[-1]}", highlight=False)
        if options.json:
            report = {"killed": killed, "survivors": survivors, "seconds": round(time.monotonic() - started)}
            options.json.write_text(json.dumps(report, indent=2, ensure_ascii=False))
    total = killed + len(survivors)
    console.print(f"{options.column}: {killed} of {total} mutants killed ({killed / total:.1%})")


if __name__ == "__main__":
    main()
