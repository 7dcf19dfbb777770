"""Show lines of a port that compute wrong values, with carets below the wrong expression."""

from __future__ import annotations

import ast
import contextlib
import linecache
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from transparity.text import safe

AROUND = 3


@dataclass(frozen=True)
class PortLine:
    file: str
    line: int
    code: str
    columns: tuple[int, int] | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def around(self) -> list[tuple[int, str]]:
        lines = linecache.getlines(self.file)
        first = max(self.line - AROUND, 1)
        shown = textwrap.dedent("".join(lines[first - 1 : self.line + AROUND]).expandtabs()).splitlines()
        indents = [len(text) - len(text.lstrip()) for text in shown]
        found = [(first + i, " " * indents[i] + safe(text.strip())) for i, text in enumerate(shown)]
        written = [i for i, text in enumerate(shown) if text.strip()]
        return found[written[0] : written[-1] + 1] if written else []

    @property
    def marked(self) -> tuple[str, str]:
        """The line without indentation, and carets for the next row; the statement and "" if the expression is
        unknown."""
        written = linecache.getline(self.file, self.line).rstrip().expandtabs()
        text = written.strip()
        if self.columns is None or not text or safe(text) != text or "\t" in linecache.getline(self.file, self.line):
            return self.code, ""
        indent = len(written) - len(text)
        start, end = (min(max(column - indent, 0), len(text)) for column in self.columns)
        return text, " " * start + _carets(text[start:end])


def _carets(expression: str) -> str:
    """Return `~~~^~~~` for a binary operation, as in Python's tracebacks, and `^^^` otherwise."""
    with contextlib.suppress(SyntaxError, ValueError):
        tree = ast.parse(expression, mode="eval").body
        if isinstance(tree, ast.BinOp) and expression.isascii():
            left = tree.left.end_col_offset or 0
            between = expression[left : tree.right.col_offset]
            sign = left + len(between) - len(between.lstrip(" )"))
            wide = len(between.strip(" ()"))
            return "~" * sign + "^" * wide + "~" * (len(expression) - sign - wide)
    return "^" * len(expression)


def lines_of(*sources: Mapping[str, Any] | None) -> tuple[PortLine, ...]:
    return tuple(dict.fromkeys(PortLine(**source) for source in sources if source is not None))
