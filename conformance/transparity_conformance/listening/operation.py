"""An operation of a port: its value, its inputs, and the lines of the port's code that ran the operation."""

from __future__ import annotations

import ast
import functools
import gc
import itertools
import linecache
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

from transparity.text import safe


@dataclass(frozen=True)
class Source:
    """A line of the port's code that was on the stack when an operation ran."""

    file: str
    line: int
    """The expression's first line, counted from 1."""
    code: str
    """The statement's text, escaped, shortened and joined to one line; empty if the file cannot be read."""
    columns: tuple[int, int] | None = field(default=None, compare=False)
    """The start and end of the expression in `line`, in characters from 0."""

    def is_at(self, other: Source | None) -> bool:
        """Return whether `other` is the same expression; `==` compares only lines."""
        return other is not None and self == other and self.columns == other.columns


@dataclass(frozen=True, eq=False)
class Operation:
    name: str
    """The operation's name in the framework, such as `aten.mm.default`, `dot_general` or `numpy.matmul`."""
    value: np.ndarray
    """A float64 copy of the result. A complex result has an additional last axis (real, imaginary)."""
    inputs: tuple[int, ...]
    """The operations that computed the inputs; parameters and tokens have no index."""
    stack: tuple[Source, ...]
    """The port's lines, innermost first; empty if a thread of the framework ran the operation."""
    grows: bool = False
    """Whether the value stacks results of a loop that have different lengths, padded with zeros."""

    @property
    def source(self) -> Source | None:
        return self.stack[0] if self.stack else None

    def line_apart(self, others: Iterable[Operation]) -> Source | None:
        """If several lines call a function, return the line that probably passed wrong arguments. Return the innermost
        line that is on no stack of `others`, or at which these stacks differ. `others` are right operations with the
        same name and innermost expression. Without such a line, return the operation's own line."""
        same = (each for each in others if each.name == self.name and each.stack)
        alike = [each.stack for each in same if each.stack[0].is_at(self.source)]
        elsewhere = {line for stack in alike for line in stack}
        depths = range(1, len(self.stack))
        calls = (depth for depth in depths if len({each[depth] for each in alike if each[depth:]}) > 1)
        rest = (line for line in self.stack if line not in elsewhere)
        return next(rest, (*self.stack[next(calls, 0) :], self.source)[0])


OURS = str(Path(__file__).parents[1]) + "/"

STANDARD_LIBRARY = tuple(
    f"{folder}/"
    for name in ("stdlib", "platstdlib")
    for folder in {sysconfig.get_path(name), str(Path(sysconfig.get_path(name)).resolve())}
)
INSTALLED = ("/site-packages/", "/dist-packages/")
GENERATED = ("<frozen ", "<__array_function__")
"""Prefixes of the file names of generated code."""

FRAMEWORKS = frozenset(["equinox", "flax", "functorch", "haiku", "jax", "jaxlib", "keras", "numpy", "torch"])
"""Packages that never contain the port."""

LONGEST_PATH = 4096


def run(call: Callable[[], Any]) -> Any:
    """Call a function. The frame of `run` marks the start of the port's frames on the stack."""
    return call()


class Lines(tuple[Source, ...]):
    """The port's lines, innermost first; `inside` has the lines of an installed package that the port calls."""

    inside: tuple[Source, ...] = ()


class Sources:
    def __init__(self) -> None:
        # Each entry keeps its code object alive, so that Python does not reuse the object's id.
        self._found: dict[tuple[int, int], tuple[CodeType, Source]] = {}

    def here(self) -> Lines:
        return self.among((frame.f_code, frame.f_lasti) for frame in _frames())

    def among(self, places: Iterable[tuple[CodeType, int]]) -> Lines:
        """Return the port's lines, innermost first. Files of the standard library, of installed packages and of this
        package do not belong to the port. If there are no other files, the port is the outermost installed package that
        is not a framework."""
        inside = itertools.takewhile(lambda place: place[0] is not run.__code__, places)
        packages = [(home(code.co_filename), code, at) for code, at in inside]
        packages = [each for each in packages if each[0] is not None and each[0] not in FRAMEWORKS]
        own = "" if any(package == "" for package, _, _ in packages) else packages[-1][0] if packages else ""
        found = Lines(self.at(code, at) for package, code, at in packages if package == own)
        called = list(itertools.takewhile(lambda place: place[0] != own, packages))
        found.inside = tuple(self.at(code, at) for package, code, at in called if package == called[-1][0])
        return found

    def at(self, code: CodeType, at: int) -> Source:
        found = self._found.get((id(code), at))
        if found is None:
            # An expression may start on a later line than its statement.
            first, last, start, end = next(itertools.islice(code.co_positions(), at // 2, None))
            line, lines = first or code.co_firstlineno, tuple(linecache.getlines(code.co_filename))
            columns = _columns(lines, line, start, end if first == last else None)
            source = Source(safe(code.co_filename, LONGEST_PATH), line, statement_at(lines, line), columns)
            found = self._found[id(code), at] = code, source
        return found[1]


def _columns(lines: tuple[str, ...], line: int, start: int | None, end: int | None) -> tuple[int, int] | None:
    """Convert columns from bytes to characters, up to the end of the line."""
    if start is None or not 1 <= line <= len(lines):
        return None
    text = lines[line - 1].rstrip().encode()
    return len(text[:start].decode(errors="replace")), len(text[:end].decode(errors="replace"))


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def home(file: str) -> str | None:
    """Return a file's installed package; None for Python and this package, "" for other files."""
    if file.startswith((OURS, *GENERATED)):
        return None
    for folder in INSTALLED:
        _, found, inside = file.rpartition(folder)
        if found:
            return inside.partition("/")[0]
    return None if file.startswith(STANDARD_LIBRARY) else ""


@functools.lru_cache(maxsize=4096)
def statement_at(lines: tuple[str, ...], line: int) -> str:
    """Return the statement at a line, or the head of a compound statement, joined to one line."""
    if not 1 <= line <= len(lines):
        return ""
    around = [node for node in statements_of(lines) if node.lineno <= line <= (node.end_lineno or 0)]
    if not around:
        return safe(lines[line - 1].strip())
    statement = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    body = getattr(statement, "body", None)
    if body:
        last = max(body[0].lineno - 1, statement.lineno)
        return safe(" ".join(part.strip() for part in lines[statement.lineno - 1 : last]))
    return safe(_text(lines, statement) or lines[line - 1].strip())


def _text(lines: tuple[str, ...], node: ast.stmt) -> str:
    """Return a statement's text. `ast.get_source_segment` would split the whole file each time."""
    text = [each.encode() for each in lines[node.lineno - 1 : node.end_lineno]]
    text[-1] = text[-1][: node.end_col_offset]
    text[0] = text[0][node.col_offset :]
    return b"".join(text).decode(errors="replace")


@functools.lru_cache(maxsize=64)
def statements_of(lines: tuple[str, ...]) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # such as a notebook cell with magic commands
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def functions_of(call: Callable[[], Any]) -> list[FunctionType]:
    codes = _codes_of(call)
    return [each for each in _referrers(codes.values()) if type(each) is FunctionType and id(each.__code__) in codes]


def _referrers(values: Iterable[Any]) -> list[Any]:
    """Return the objects that refer to a value, including objects that `gc.freeze` has hidden."""
    if not gc.get_freeze_count():
        return gc.get_referrers(*values)
    gc.unfreeze()
    try:
        return gc.get_referrers(*values)
    finally:
        gc.freeze()


def _codes_of(call: Callable[[], Any]) -> dict[int, CodeType]:
    """Return the code objects of a call by id, because code objects may be equal."""
    codes: dict[int, CodeType] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and home(frame.f_code.co_filename) == "":
            codes[id(frame.f_code)] = frame.f_code

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return codes
