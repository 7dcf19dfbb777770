"""Find the line at which a port does not pass a mask on, from the source text of the functions on a stack."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence

from transparity_conformance.listening.operation import Source, statements_of

Function = ast.FunctionDef | ast.AsyncFunctionDef


def dropping_line(stack: Sequence[Source]) -> Source | None:
    """Return the outermost line that drops a mask. The function of this line takes a mask, but the line's statement
    reads neither the mask nor a value computed from the mask. `stack` starts with the innermost line."""
    for source in reversed(stack):
        every = statements_of(tuple(linecache.getlines(source.file)))
        around = [node for node in every if node.lineno <= source.line <= (node.end_lineno or 0)]
        function = max((node for node in around if isinstance(node, Function)), key=_first, default=None)
        statement = max(around, key=_first, default=None)
        if function is None or statement is None or hasattr(statement, "body"):
            continue
        masks = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg) and "mask" in each.arg}
        if masks and _names(statement, ast.Load).isdisjoint(_computed_from(masks, function)):
            return source
    return None


def _first(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    found = (each for each in ast.walk(node) if isinstance(each, ast.Name))
    return {each.id for each in found if isinstance(each.ctx, context)}


def _computed_from(masks: set[str], function: Function) -> set[str]:
    """Return the names that may hold a mask or a value computed from a mask; the owner of such an attribute counts."""
    found = set(masks)
    for value, target in sorted(_assignments(function), key=lambda pair: _first(pair[1])):
        if not _names(value, ast.Load).isdisjoint(found):
            is_plain = isinstance(target, ast.Name | ast.Tuple | ast.List)
            found |= _names(target, ast.Store) if is_plain else _names(target, ast.Load)
    return found


def _assignments(function: Function) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            yield from ((node.value, target) for target in node.targets)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.value, node.target
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.iter, node.target
