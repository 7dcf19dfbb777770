"""Mutation testing: every line of a column made wrong by rote, and the suite asked whether it notices.

    python conformance/meta/mutate.py transparity_pytorch

Each mutant changes one operator, number, comparison, name or argument of one of the files that every column has,
and is killed by the first claim that fails: those about the file are asked first, then all, then those about the file
in every dtype, and drawn configurations last. The survivors are printed: each is a hole, or a mutant that computes
the same. Those that were read and found to compute the same stand in `equivalents.toml`, with the reason, and are
counted apart.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from meta.planting import FILES, REFERENCE_COLUMN, as_reference, column_path, planted
from meta.test_plants import DRAWN, caught
from transparity.protocol import Backend
from transparity_conformance.oracle.backends import backend
from transparity_conformance.suite.claims import all_claims

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

ABOUT = {"head": "families", "transformer": "forward", "rounding": "precision"}
ABOUT |= {"cache": "decoding", "beams": "generation"}
"""The topic of the claims about a file, where it is not called as the file is: those are asked first."""

COMMUTATIVE = {"transpose", "swapaxes", "max", "min", "maximum", "minimum", "clip", "equal", "array_equal"}
COMMUTATIVE |= {"promote_types", "result_type"}
"""Calls that mean the same with their first arguments exchanged: such a mutant is none."""


EQUIVALENTS = Path(__file__).with_name("equivalents.toml")


def equivalents(column: str) -> dict[tuple[str, str], str]:
    """Why what a line becomes computes the same, by the file and by what it becomes."""
    known = tomllib.loads(EQUIVALENTS.read_text())["equivalent"]
    return {(it["file"], line): it["why"] for it in known if it["column"] == column for line in it["becomes"]}


@dataclass(frozen=True)
class Mutant:
    """One file of a column with one node of it changed."""

    file: str
    line: int
    change: str
    becomes: str
    """The line as it is then, in Python's own layout."""
    source: str


def mutants(file: str, text: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(text)
    right = ast.unparse(tree).splitlines()
    annotated = [node for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)]
    unread = {id(node) for of in annotated for node in ast.walk(of if of.value is None else of.annotation)}
    not_code = _not_code(tree)
    for node in [node for node in ast.walk(tree) if id(node) not in unread]:
        line, before, fields = getattr(node, "lineno", 0), _shown(node), dict(vars(node))
        for variant in range(4 if line and line not in not_code else 0):
            if not mutate(node, variant):
                continue
            after, source = _shown(node), ast.unparse(ast.fix_missing_locations(tree))
            vars(node).update(fields)  # as it was: what is wrong stands in fields of its own
            wrong = [new for old, new in zip(right, source.splitlines(), strict=False) if old != new]
            if after != before and wrong:
                yield Mutant(file, line, f"{before}  →  {after}", wrong[0].strip(), source)


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


def _not_code(tree: ast.Module) -> set[int]:
    """The lines that are not what runs: an import, an annotation or a default of a signature, an assertion."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef):
            lines.update(range(node.lineno, node.body[0].lineno))
    return lines


def killer(column: str, mutant: Mutant, *, quick: bool) -> str | None:
    """The first claim that notices, or None; of the `quick` ones alone."""
    claims = {name: claim for name, claim in all_claims().items() if not claim.needs or column == REFERENCE_COLUMN}
    near = f"{ABOUT.get(mutant.file, mutant.file)}."
    names = sorted(
        claims,
        key=lambda name: (
            not name.startswith(near),
            not claims[name].quick,
            name.startswith(("documents.printed", "metamorphic")),
        ),
    )
    try:
        with planted(column, mutant.file, mutant.source) as build, ExitStack() as stack:
            subjects: list[Backend] = [build]
            if column == REFERENCE_COLUMN:
                stack.enter_context(as_reference(build))
                subjects.append(backend("pytorch"))  # which is right: what disagrees with it is the mutant
            for name, subject, dtype in _questions(names, subjects, near, quick=quick):
                if caught(name, subject, dtype):
                    return f"{name} ({dtype})" if dtype else name
    except Exception as error:  # noqa: BLE001 - a mutant that cannot even be imported is noticed by everybody
        return f"import: {type(error).__name__}"
    return None


def _questions(
    names: Sequence[str], subjects: Sequence[Backend], near: str, *, quick: bool
) -> Iterator[tuple[str, Backend, str | None]]:
    """What is asked, of whom and in which dtype (None: the usual one)."""
    claims = all_claims()
    asked = [(name, it) for name in names for it in subjects if claims[name].of_reference or it.name != "numpy"]
    yield from ((name, it, None) for name, it in asked if claims[name].quick or not quick)
    if quick:
        return
    for name, it in asked:
        if name.startswith(near):
            yield from ((name, it, dtype) for dtype in claims[name].dtypes if dtype in it.dtypes)
    yield from ((DRAWN, it, None) for it in subjects if it.name != "numpy")


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
    drawn = [mutant for file, text in texts.items() for mutant in mutants(file, text)]
    same = equivalents(options.column)
    chosen = [mutant for mutant in drawn if (mutant.file, mutant.becomes) not in same]
    left_out = len(drawn) - len(chosen)
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
    console.print(f"Of {len(drawn)} in all, {left_out} compute the same and were not asked ({EQUIVALENTS.name}).")


if __name__ == "__main__":
    main()
