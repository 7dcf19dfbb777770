"""Record what the expressions of a port evaluate to (tensors, numbers and modules), by position in the source."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

Key = tuple[int, int, int, int]


@dataclass(frozen=True)
class Value:
    """A value: a tensor's kind and shape, a number, or a module's class with the shapes of its weights."""

    kind: str
    shape: tuple[Any, ...]


def described(value: object) -> Value | None:
    if isinstance(value, Tensor):
        kind = "float" if value.is_floating_point() else "complex" if value.is_complex() else "integers"
        return Value(kind, tuple(value.shape))
    if isinstance(value, nn.Module):
        return Value(type(value).__name__, tuple(tuple(weight.shape) for weight in value.parameters()))
    return Value("number", (value,)) if isinstance(value, int | float) and not isinstance(value, bool) else None


def key_of(node: ast.AST) -> Key:
    """Return the position of a node in the source: (first line, first column, last line, last column)."""
    place: Any = node
    return place.lineno, place.col_offset, place.end_lineno, place.end_col_offset


class Observed(ast.NodeTransformer):
    """An AST transformer that replaces each expression in a function's body by `_seen(key, expression)`."""

    def visit(self, node: ast.AST) -> Any:
        """Wrap an expression whose value is read; leave declarations unchanged."""
        if isinstance(node, ast.Module | ast.ClassDef):
            inner = ast.FunctionDef | ast.ClassDef
            node.body = [self.visit(part) if isinstance(part, inner) else part for part in node.body]
            return node
        if isinstance(node, ast.FunctionDef):
            node.body = [self.visit(part) for part in node.body]
            return node
        if isinstance(node, ast.JoinedStr | ast.Constant | ast.Lambda):
            return node
        if isinstance(node, ast.AnnAssign):
            node.value = self.visit(node.value) if node.value else None
            return node
        place = ast.parse(repr(key_of(node)), mode="eval").body if isinstance(node, ast.expr) else None
        is_part = isinstance(node, ast.Slice | ast.Starred) or (
            isinstance(node, ast.Tuple) and any(isinstance(each, ast.Slice | ast.Starred) for each in node.elts)
        )
        wrapped: Any = self.generic_visit(node)
        if place is None or is_part or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return wrapped
        return ast.Call(ast.Name("_seen", ast.Load()), [place, wrapped], [])


class Site:
    """A port's syntax tree, with the recorded value of each expression."""

    def __init__(self, text: str, seen: Mapping[Key, Value | None]) -> None:
        self.tree, self.seen = ast.parse(text), seen
        self.parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self.names: dict[ast.AST | None, dict[str, Value]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and (value := self.value(node)):
                self.names.setdefault(self.around(node, ast.FunctionDef), {}).setdefault(ast.unparse(node), value)

    def around(self, node: ast.AST, kind: type[ast.AST]) -> ast.AST | None:
        found: ast.AST | None = node
        while found is not None and not isinstance(found, kind):
            found = self.parents.get(found)
        return found

    def value(self, node: ast.AST | None) -> Value | None:
        return self.seen.get(key_of(node)) if isinstance(node, ast.expr) else None

    def kind(self, node: ast.AST | None) -> str:
        return value.kind if (value := self.value(node)) else ""

    def shape(self, node: ast.AST | None) -> tuple[Any, ...]:
        return value.shape if (value := self.value(node)) else ()

    def tensor(self, node: ast.AST | None) -> bool:
        return self.kind(node) == "float"

    def same(self, node: ast.AST, other: ast.AST) -> bool:
        return self.value(node) is not None and self.value(node) == self.value(other)

    def is_reached(self, node: ast.AST) -> bool:
        statement = self.around(node, ast.stmt)
        return statement is not None and any(
            key_of(part) in self.seen for part in ast.walk(statement) if isinstance(part, ast.expr)
        )

    def alike(self, node: ast.AST) -> list[str]:
        """Return other names in the same function whose values have the same kind and shape."""
        names = self.names.get(self.around(node, ast.FunctionDef), {})
        return [name for name, value in names.items() if value == self.value(node) and name != ast.unparse(node)]
