"""The parsed source of a column's file: signatures, docstrings, shapes, and statements with their comments."""

import ast
import io
import re
import tokenize
from dataclasses import dataclass

from docs.site.side_by_side.lines import in_one_line

BODIES = ("forward", "__call__")
"""Names of methods that correspond to a function of the NumPy column; the first such method of a class is used."""

SHAPE = re.compile(r"\b\w+\[[\w.]+, '([^']*)'\]")
"""Matches a jaxtyping annotation, whose string is the shape."""


@dataclass(frozen=True)
class Statement:
    """A statement, or the first line of a compound statement: its text on one line, and its lines in the file."""

    text: str
    depth: int
    comments: tuple[str, ...]
    begin: int
    end: int
    targets: tuple[str, ...] = ()
    returns: bool = False


@dataclass(frozen=True)
class Definition:
    """A function, method or table. `name` is the common name in all columns; `label` is the name in this column."""

    name: str
    label: str
    doc: str
    shapes: tuple[tuple[str, str], ...]
    statements: tuple[Statement, ...]
    line: int


def definitions(source: str) -> dict[str, Definition]:
    reader = _Reader(source)
    return {found.name: found for node in ast.parse(source).body for found in reader.defined(node)}


def shared_name(name: str) -> str:
    """Return the columns' common name: `self_attention` for the class `SelfAttention`."""
    return re.sub(r"(?<!^)(?<!_)(?=[A-Z])", "_", name).lower() if not name.isupper() else name


class _Reader:
    """The source of one file, with its comments by line."""

    def __init__(self, source: str) -> None:
        self.source, self.lines = source, source.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}

    def defined(self, node: ast.stmt) -> list[Definition]:
        if isinstance(node, ast.FunctionDef):
            return [self.function(node, shared_name(node.name), node.name, ast.get_docstring(node) or "")]
        if isinstance(node, ast.ClassDef):
            return self.class_(node)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                return [Definition(target.id, target.id, "", (), self.statement(node, 0, node.lineno - 1), node.lineno)]
        return []

    def class_(self, node: ast.ClassDef) -> list[Definition]:
        """Return a class's methods, the method in `BODIES` first. Without methods, return the class with its fields."""
        name, doc = shared_name(node.name), ast.get_docstring(node) or ""
        methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
        body = next((known for known in BODIES if known in methods), None)
        if body is None and not methods:
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            listed = tuple(found for part in fields for found in self.statement(part, 0, part.lineno - 1))
            return [Definition(name, node.name, doc, (), listed, node.lineno)]
        ordered = ([body] if body else []) + [method for method in methods if method != body]
        return [
            self.method(node, methods[method], name if method == body else f"{name}.{method}", doc)
            for method in ordered
        ]

    def method(self, node: ast.ClassDef, method: ast.FunctionDef, name: str, doc: str) -> Definition:
        """Return a method; a method in `BODIES` without a docstring gets the docstring of its class."""
        own = ast.get_docstring(method) or ("" if "." in name else doc)
        return self.function(method, name, f"{node.name}.{method.name}", own)

    def function(self, node: ast.FunctionDef, name: str, label: str, doc: str) -> Definition:
        """Return the definition of a function, whose first statement is the signature without annotations."""
        begins = node.body[0].lineno
        head = Statement(_signature(node), 0, (), node.lineno, begins - 1)
        body = node.body[1:] if ast.get_docstring(node) else node.body
        after = (node.body[0].end_lineno or begins) if ast.get_docstring(node) else self._last_code(begins - 1)
        return Definition(name, label, doc, tuple(_shapes(node)), (head, *self.body(body, 1, after)), node.lineno)

    def body(self, nodes: list[ast.stmt], depth: int, after: int) -> tuple[Statement, ...]:
        """Return the statements of a body; its comments start after line `after`."""
        found: list[Statement] = []
        for node in nodes:
            found += self.statement(node, depth, after)
            after = node.end_lineno or node.lineno
        return tuple(found)

    def statement(self, node: ast.stmt, depth: int, after: int) -> tuple[Statement, ...]:
        """Return a statement and the statements in it; comments after line `after` belong to it."""
        inner: list[ast.stmt] = getattr(node, "body", [])
        if not inner:
            end = node.end_lineno or node.lineno
            text = self._text(node.lineno, end)
            return (Statement(text, depth, self._comments(after, end), node.lineno, end, *_results(node)),)
        end = self._last_code(inner[0].lineno - 1)
        text = self._text(node.lineno, end)
        head = Statement(text, depth, self._comments(after, end), node.lineno, end)
        otherwise: list[ast.stmt] = getattr(node, "orelse", [])
        if not otherwise:
            return (head, *self.body(inner, depth + 1, end))
        last = inner[-1].end_lineno or end
        line = self._last_code(otherwise[0].lineno - 1)
        alternative = Statement("else:", depth, self._comments(last, line), line, line)
        rest = (alternative, *self.body(otherwise, depth + 1, line))
        if isinstance(otherwise[0], ast.If) and self.lines[otherwise[0].lineno - 1].lstrip().startswith("elif"):
            rest = self.statement(otherwise[0], depth, last)
        return (head, *self.body(inner, depth + 1, end), *rest)

    def _text(self, begin: int, end: int) -> str:
        return in_one_line("\n".join(self._code(line) for line in range(begin, end + 1)))

    def _code(self, line: int) -> str:
        comment = self.comments.get(line)
        text = self.lines[line - 1]
        return text[: text.rindex(comment)] if comment else text

    def _comments(self, after: int, end: int) -> tuple[str, ...]:
        return tuple(self.comments[line] for line in range(after + 1, end + 1) if line in self.comments)

    def _last_code(self, line: int) -> int:
        while not self._code(line).strip():
            line -= 1
        return line


def _results(node: ast.stmt) -> tuple[tuple[str, ...], bool]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]
    stored = [name for name in names if not isinstance(node, ast.For)]
    return tuple(dict.fromkeys(stored)), isinstance(node, ast.Return)


def _signature(node: ast.FunctionDef) -> str:
    bare = ast.parse(ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Pass()], [], lineno=0))).body[0]
    for part in ast.walk(bare):
        if isinstance(part, ast.arg):
            part.annotation = None
    return ast.unparse(bare).splitlines()[0]


def _shapes(node: ast.FunctionDef) -> list[tuple[str, str]]:
    """Return the shapes of array arguments by name, and the shapes of the result under the name `returns`."""
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    given = [(argument.arg, argument.annotation) for argument in arguments] + [("returns", node.returns)]
    found = [(name, SHAPE.findall(ast.unparse(annotation))) for name, annotation in given if annotation]
    return [
        (name, " or ".join(dict.fromkeys(shape.strip() or "scalar" for shape in shapes)))
        for name, shapes in found
        if shapes
    ]
