"""An operation of a port: its value, the operations that it was given, and the line that ran it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Source:
    """A line of the port's own code on the stack."""

    file: str
    line: int
    """The line on which the expression begins, from 1."""
    code: str
    """The statement on one line, escaped and cut; empty if the file cannot be read."""
    columns: tuple[int, int] | None = field(default=None, compare=False)
    """Start and end of the expression in `line`, in characters from 0; None if Python does not tell."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A value that a port computed on the way."""

    name: str
    """The framework's own name, such as `aten.mm.default`, `dot_general` or `numpy.matmul`."""
    value: np.ndarray
    """The result in float64, as it was right after the operation; a complex one has a last axis (real, imaginary)."""
    inputs: tuple[int, ...]
    """Indices, in the record, of the operations whose values it was given; parameters and tokens have none."""
    stack: tuple[Source, ...]
    """The line of the port that ran it, and those that called it, the innermost first; none in threads of a framework.
    """
    grows: bool = False
    """Whether it stands for the turns of a loop whose value grows: what a turn does not have yet is 0."""

    @property
    def source(self) -> Source | None:
        """The line that ran it."""
        return self.stack[0] if self.stack else None

    def line_apart(self, others: Iterable[Operation]) -> Source | None:
        """The innermost line that runs none of the `others` with the same source, which were right: wrong is what it
        was given; its source if there is none."""
        alike = (each.stack for each in others if each.stack[:1] == self.stack[:1])
        elsewhere = {line for stack in alike for line in stack}
        return next((line for line in self.stack if line not in elsewhere), self.source)
