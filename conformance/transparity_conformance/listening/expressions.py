"""Rewrite Python code so that each expression reports its operands and its value, with the same results."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Literal

VALUE, OPERAND, WROTE = "__transparity_value__", "__transparity_operand__", "__transparity_wrote__"
"""The names of hooks in Python's builtins. The rewritten code passes each value to `VALUE` and each operand to
`OPERAND`, which return their argument, and calls `WROTE` after each assignment into an array."""

GENERATED = "__transparity_generated__"
"""The hook for generators and `map`, whose items become operands when the code reads them."""

SLICE = "__transparity_slice__"
"""Python's `slice` under another name, because the port may define a function `slice`."""

Kind = Literal["call", "method", "operator", "attribute", "subscript", "comparison", "assignment"]


@dataclass(frozen=True)
class Site:
    kind: Kind
    name: str
    """The name of the operator in NumPy, such as `matmul`, or the name of the attribute or method."""
    operands: tuple[int, ...]
    """The numbers of the operands. The first is the called function, or the array that is read or modified."""
    writes: bool = False
    """Whether the call writes its result into an argument `out=`."""


SITES: dict[int, Site] = {}
"""All sites. Numbers are never reused, because rewritten functions of earlier recordings may still exist."""

_numbers = itertools.count()

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.MatMult: "matmul",
    ast.Pow: "power",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.USub: "negative",
    ast.UAdd: "positive",
    ast.Invert: "invert",
    ast.BitAnd: "bitwise_and",
    ast.BitOr: "bitwise_or",
    ast.BitXor: "bitwise_xor",
}


@functools.lru_cache(maxsize=64)
def reporting(file: str, text: str) -> dict[Hashable, CodeType]:
    try:
        tree = ast.parse(text, file)
        plain = compile(tree, file, "exec", dont_inherit=True)
        changed = compile(ast.fix_missing_locations(_Reporting().visit(tree)), file, "exec", dont_inherit=True)
        pairs = list(zip(_codes(plain), _codes(changed), strict=True))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return {identity(old): new for old, new in pairs if old.co_freevars == new.co_freevars}


def identity(code: CodeType) -> Hashable:
    """Return a key that distinguishes even functions on the same line."""
    return code.co_qualname, code.co_firstlineno, code.co_linetable, code.co_freevars


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


class _Reporting(ast.NodeTransformer):
    """Wraps expressions in calls of hooks, except annotations, decorators and `match` patterns."""

    def visit_FunctionDef(self, node: Any) -> Any:
        node.body = self._all(node.body)
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        node.body = self.visit(node.body)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        node.value = node.value and self.visit(node.value)
        return node

    def visit_match_case(self, node: Any) -> Any:
        node.guard = node.guard and self.visit(node.guard)
        node.body = self._all(node.body)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        return self._wrapped(node, "operator", OPERATORS.get(type(node.op), "operator"), "left", "right")

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not) or isinstance(node.operand, ast.Constant):
            return self.generic_visit(node)
        return self._wrapped(node, "operator", OPERATORS[type(node.op)], "operand")

    def visit_Compare(self, node: ast.Compare) -> Any:
        return self._wrapped(node, "comparison", "compare", "left", "comparators")

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        if not isinstance(node.slice, ast.Slice | ast.Tuple):  # row numbers, or one number
            return self._wrapped(node, "subscript", "getitem", "value", "slice")
        node.slice = self.visit(node.slice)
        return self._wrapped(node, "subscript", "getitem", "value")

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if not isinstance(node.ctx, ast.Load):
            return self.generic_visit(node)
        return self._wrapped(node, "attribute", node.attr, "value")

    def _wrapped(self, node: Any, kind: Kind, name: str, *fields: str) -> Any:
        numbers: list[int] = []
        for field in fields:
            found = getattr(node, field)
            changed, more = self._operands(found if isinstance(found, list) else [found])
            setattr(node, field, changed if isinstance(found, list) else changed[0])
            numbers += more
        return _value(node, kind, name, numbers)

    def visit_Call(self, node: ast.Call) -> Any:
        name = ""
        if isinstance(node.func, ast.Attribute):
            method, name = node.func, node.func.attr
            if method.end_lineno and method.end_lineno != node.lineno:
                # In a chain of calls over several lines, Python reports each call at the line of the method's name.
                node.lineno = method.end_lineno
                node.col_offset = max(0, (method.end_col_offset or 0) - len(name))
            method.value, receiver = self._operand(method.value)
            node.func, function = _operand(method)
            first = [function, receiver]
        else:
            node.func, function = self._operand(node.func)
            first = [function]
        node.args, arguments = self._operands(node.args)
        named = []
        for keyword in node.keywords:
            keyword.value, number = self._operand(keyword.value)
            named.append(number)
        writes = any(keyword.arg == "out" for keyword in node.keywords)
        return _value(node, "method" if name else "call", name, [*first, *arguments, *named], writes)

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        array = _array_of(node.target)
        node.value, value = self._operand(node.value)
        if array is None:
            return node
        before, number = _operand(array)
        wrote = _wrote(node, OPERATORS.get(type(node.op), "operator"), [number, value], array, None)
        return [_statement(before, node), node, wrote]

    def visit_Assign(self, node: ast.Assign) -> Any:
        target = node.targets[0]
        array = _array_of(target) if isinstance(target, ast.Subscript) and len(node.targets) == 1 else None
        if not isinstance(target, ast.Subscript) or array is None:
            node.value = self.visit(node.value)
            return node
        before, number = _operand(array)
        node.value, value = self._operand(node.value)
        index, part = _operand(_as_expression(target.slice))
        target.slice = index
        wrote = _wrote(node, "setitem", [number, value], array, part)
        return [_statement(before, node), node, wrote]

    def _all(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        changed = (self.visit(statement) for statement in statements)
        return [each for result in changed for each in (result if isinstance(result, list) else [result])]

    def _operands(self, nodes: list[Any]) -> tuple[list[Any], list[int]]:
        pairs = [self._operand(node) for node in nodes]
        return [node for node, _ in pairs], [number for _, number in pairs]

    def _operand(self, node: Any) -> tuple[Any, int]:
        if isinstance(node, ast.Starred):
            node.value, number = self._operand(node.value)
            return node, number
        if isinstance(node, ast.Constant):
            return node, next(_numbers)
        is_map = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "map"
        is_lazy = is_map or isinstance(node, ast.GeneratorExp)  # before `visit`, which changes the node
        return _operand(self.visit(node), GENERATED if is_lazy else OPERAND)


def _operand(node: Any, hook: str = OPERAND) -> tuple[Any, int]:
    number = next(_numbers)
    return _call(hook, [ast.Constant(number), node], node), number


def _value(node: Any, kind: Kind, name: str, operands: list[int], writes: bool = False) -> Any:
    number = next(_numbers)
    SITES[number] = Site(kind, name, tuple(operands), writes)
    return _call(VALUE, [ast.Constant(number), node], node)


def _wrote(node: Any, name: str, operands: list[int], array: Any, part: int | None) -> ast.stmt:
    """Return a statement that reports an assignment into `array`. `part` is the operand number of the index."""
    number = next(_numbers)
    SITES[number] = Site("assignment", name, (*operands, *([] if part is None else [part])))
    return _statement(_call(WROTE, [ast.Constant(number), array], node), node)


def _call(name: str, arguments: list[Any], node: Any) -> Any:
    return ast.copy_location(ast.Call(ast.copy_location(ast.Name(name, ast.Load()), node), arguments, []), node)


def _statement(expression: Any, node: Any) -> ast.stmt:
    return ast.copy_location(ast.Expr(expression), node)


def _array_of(target: Any) -> Any:
    if isinstance(target, ast.Subscript):
        target = target.value
    elif not isinstance(target, ast.Name):
        return None
    parts = target
    while isinstance(parts, ast.Attribute):
        parts = parts.value
    return ast.parse(ast.unparse(target), mode="eval").body if isinstance(parts, ast.Name) else None


def _as_expression(index: Any) -> Any:
    """Replace slices such as `a:b` in an index by `slice(a, b)`."""
    if isinstance(index, ast.Tuple):
        return ast.copy_location(ast.Tuple([_as_expression(each) for each in index.elts], ast.Load()), index)
    if not isinstance(index, ast.Slice):
        return index
    return _call(SLICE, [part or ast.Constant(None) for part in (index.lower, index.upper, index.step)], index)
