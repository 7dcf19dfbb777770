"""Lines of a port in which wrong numbers are made."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple

from transparity_conformance.report.report import Cause, Divergence
from transparity_conformance.report.text import safe

AROUND = 3
"""Lines that are shown before and after one."""


class PortLine(NamedTuple):
    """The line of an operation, and its statement."""

    file: str
    line: int
    code: str

    @property
    def place(self) -> str:
        """`model.py:52`."""
        return f"{PurePath(self.file).name}:{self.line}"

    @property
    def around(self) -> list[tuple[int, str]]:
        """The lines around it with their numbers, itself included; none if the file cannot be read."""
        lines = linecache.getlines(self.file)
        first = max(self.line - AROUND, 1)
        shown = textwrap.dedent("".join(lines[first - 1 : self.line + AROUND]).expandtabs()).splitlines()
        indents = [len(text) - len(text.lstrip()) for text in shown]
        return [(first + i, " " * indents[i] + safe(text.strip())) for i, text in enumerate(shown)]


def lines_of(faults: Iterable[Divergence | Cause]) -> tuple[PortLine, ...]:
    """The lines of several divergences or causes, each once, in order."""
    return _each_once(fault.source for fault in faults)


def lines_of_reference(faults: Iterable[Divergence]) -> tuple[PortLine, ...]:
    """The lines that several divergences depart from, each once, in order."""
    return _each_once(fault.reference_source for fault in faults)


def _each_once(sources: Iterable[Mapping[str, Any] | None]) -> tuple[PortLine, ...]:
    known = (source for source in sources if source is not None)
    return tuple(dict.fromkeys(PortLine(source["file"], source["line"], source["code"]) for source in known))
