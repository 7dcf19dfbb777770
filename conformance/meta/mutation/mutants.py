"""Mutants: each mutant is a file of a column with one changed node in its syntax tree. Operators, numbers, comparisons,
names and arguments change; imports, annotations and assertions do not."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.MatMult: ast.Mult}
OPERATORS |= {ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Mod: ast.Add, ast.FloorDiv: ast.Mult}
COMPARISONS = {ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
COMPARISONS |= {ast.Is: ast.IsNot, ast.IsNot: ast.Is}
PAIRS = ("up down", "weight bias", "sin cos", "mean sum", "source target", "head_dim embed_dim", "min max")
TWINS = {one: other for pair in PAIRS for one, other in (pair.split(), pair.split()[::-1])}
TWINS |= {"query": "key", "key": "value", "value": "query", "queries": "keys", "running_mean": "running_var"}

COMMUTATIVE = {"transpose", "swapaxes", "max", "min", "maximum", "minimum", "clip", "equal", "array_equal"}
COMMUTATIVE |= {"promote_types", "result_type"}
"""Functions whose first two arguments commute, so that no mutant swaps them."""


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    change: str
    becomes: str
    """The mutated line, formatted by `ast.unparse`."""
    source: str


def mutants(file: str, text: str) -> Iterator[Mutant]:
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
            vars(node).update(fields)  # restore the node
            wrong = [new for old, new in zip(right, source.splitlines(), strict=False) if old != new]
            if after != before and wrong:
                yield Mutant(file, line, f"{before}  →  {after}", wrong[0].strip(), source)


def mutate(node: ast.AST, variant: int) -> bool:
    """Apply the change number `variant` to `node`; return False if `node` has no such change."""
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
        case ast.Call() if variant in (1, 2):
            return _drop_keyword(node, first=variant == 1)
        case ast.Return(value=ast.BinOp(left=left)) if variant == 0:
            node.value = left
        case _:
            return False
    return True


def _drop_keyword(node: ast.Call, *, first: bool) -> bool:
    """Remove the first keyword argument, or the last of several, but never `device`; return whether one was removed."""
    place = 0 if first else len(node.keywords) - 1
    if place < (0 if first else 1) or not node.keywords or node.keywords[place].arg == "device":
        return False
    node.keywords = [keyword for at, keyword in enumerate(node.keywords) if at != place]
    return True


def _shown(node: ast.AST) -> str:
    try:
        return ast.unparse(node).splitlines()[0][:90]
    except (AttributeError, IndexError):
        return ""


def _not_code(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
        if isinstance(node, ast.FunctionDef):
            lines.update(range(node.lineno, node.body[0].lineno))
    return lines
