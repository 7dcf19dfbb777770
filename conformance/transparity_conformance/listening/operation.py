"""An operation of a port: its value, its inputs, and the lines of the port's code that ran it."""

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
    """A line of the port's code that was on the stack."""

    file: str
    line: int
    """The expression's first line, counted from 1."""
    code: str
    """The statement, escaped, truncated and joined to one line; empty if the file cannot be read."""
    columns: tuple[int, int] | None = field(default=None, compare=False)
    """The expression's start and end in `line`, in characters from 0; None if Python does not report them."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A value that a port computed, and how."""

    name: str
    """The framework's name, such as `aten.mm.default`, `dot_general` or `numpy.matmul`."""
    value: np.ndarray
    """The result in float64, copied at once; a complex result has a last axis (real, imaginary)."""
    inputs: tuple[int, ...]
    """The indices of the operations that computed the inputs, without parameters and tokens."""
    stack: tuple[Source, ...]
    """The line that ran the operation, and the lines that called it, innermost first. Empty if a thread of the
    framework ran the operation."""
    grows: bool = False
    """Whether the value stacks the iterations of a loop whose result grows; shorter iterations end in zeros."""

    @property
    def source(self) -> Source | None:
        return self.stack[0] if self.stack else None

    def line_apart(self, others: Iterable[Operation]) -> Source | None:
        """Return the line that passed wrong arguments: the innermost line on the stack that ran none of the right
        operations `others`. Only operations with the same source line are considered. If no such line exists, return
        the operation's own line.
        """
        alike = (each.stack for each in others if each.stack[:1] == self.stack[:1])
        elsewhere = {line for stack in alike for line in stack}
        return next((line for line in self.stack if line not in elsewhere), self.source)


OURS = str(Path(__file__).parents[1]) + "/"
"""The folder of `transparity_conformance`, whose frames never belong to the port."""

STANDARD_LIBRARY = tuple(
    f"{folder}/"
    for name in ("stdlib", "platstdlib")
    for folder in {sysconfig.get_path(name), str(Path(sysconfig.get_path(name)).resolve())}
)
INSTALLED = ("/site-packages/", "/dist-packages/")
GENERATED = ("<frozen ", "<__array_function__")
"""Prefixes of file names for code without a file, in Python and NumPy."""

FRAMEWORKS = frozenset(["equinox", "flax", "functorch", "haiku", "jax", "jaxlib", "keras", "numpy", "torch"])
"""Packages that call a model and run its operations, but are not the model."""

LONGEST_PATH = 4096


def run(call: Callable[[], Any]) -> Any:
    """Call a function; only frames inside this call can belong to the port."""
    return call()


class Lines(tuple[Source, ...]):
    """The port's lines on a stack, innermost first. If the innermost line calls an installed package, `inside` has the
    lines of that package."""

    inside: tuple[Source, ...] = ()


class Sources:
    """Finds the lines of one run, and looks up each line only once."""

    def __init__(self) -> None:
        self._found: dict[
            tuple[int, int], tuple[CodeType, Source]
        ] = {}  # keeps the code object, so that no other object has its id

    def here(self) -> Lines:
        return self.among((frame.f_code, frame.f_lasti) for frame in _frames())

    def among(self, places: Iterable[tuple[CodeType, int]]) -> Lines:
        """Return the port's lines among `places`; both are in order from the innermost line. A line is the port's if
        its file is outside the standard library, installed packages and this package. Otherwise, the port is installed,
        and has the lines in the outermost package that is not a framework."""
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
            # An expression's line may differ from its statement's.
            first, last, start, end = next(itertools.islice(code.co_positions(), at // 2, None))
            line, lines = first or code.co_firstlineno, tuple(linecache.getlines(code.co_filename))
            columns = _columns(lines, line, start, end if first == last else None)
            source = Source(safe(code.co_filename, LONGEST_PATH), line, statement_at(lines, line), columns)
            found = self._found[id(code), at] = code, source
        return found[1]


def _columns(lines: tuple[str, ...], line: int, start: int | None, end: int | None) -> tuple[int, int] | None:
    """Return an expression's columns in characters (Python reports bytes), up to the end of the line."""
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
    """Return a file's installed package; empty for other files, and None for files of Python and this package."""
    if file.startswith((OURS, *GENERATED)):
        return None
    for folder in INSTALLED:
        _, found, inside = file.rpartition(folder)
        if found:
            return inside.partition("/")[0]
    return None if file.startswith(STANDARD_LIBRARY) else ""


@functools.lru_cache(maxsize=4096)
def statement_at(lines: tuple[str, ...], line: int) -> str:
    """Return the statement at a line, joined to one line; for a compound statement, only its head."""
    if not 1 <= line <= len(lines):
        return ""
    around = [node for node in _statements(lines) if node.lineno <= line <= (node.end_lineno or 0)]
    if not around:
        return safe(lines[line - 1].strip())
    statement = min(around, key=lambda node: (node.end_lineno or 0) - node.lineno)
    body = getattr(statement, "body", None)
    if body:
        last = max(body[0].lineno - 1, statement.lineno)
        return safe(" ".join(part.strip() for part in lines[statement.lineno - 1 : last]))
    return safe(_text(lines, statement) or lines[line - 1].strip())


def _text(lines: tuple[str, ...], node: ast.stmt) -> str:
    """Return a statement's text; `ast.get_source_segment` would split the whole file again for each statement."""
    text = [each.encode() for each in lines[node.lineno - 1 : node.end_lineno]]
    text[-1] = text[-1][: node.end_col_offset]
    text[0] = text[0][node.col_offset :]
    return b"".join(text).decode(errors="replace")


@functools.lru_cache(maxsize=64)
def _statements(lines: tuple[str, ...]) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError):  # such as a notebook cell with magic commands
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))


def functions_of(call: Callable[[], Any]) -> list[FunctionType]:
    """Call a function; return the port's functions that ran in this thread."""
    codes = _codes_of(call)
    return [each for each in _referrers(codes.values()) if type(each) is FunctionType and id(each.__code__) in codes]


def _referrers(values: Iterable[Any]) -> list[Any]:
    """Return the objects that refer to any of the values, including objects frozen for the garbage collector."""
    if not gc.get_freeze_count():
        return gc.get_referrers(*values)
    gc.unfreeze()
    try:
        return gc.get_referrers(*values)
    finally:
        gc.freeze()


def _codes_of(call: Callable[[], Any]) -> dict[int, CodeType]:
    """Return the port's code objects that a call runs, by id, because code objects with the same text are equal."""
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
