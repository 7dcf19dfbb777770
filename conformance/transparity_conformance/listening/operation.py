"""An operation of a port: its value, the operations of its inputs, and the line that ran it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Source:
    """A line of the port's own code on the stack."""

    file: str
    line: int
    """The line on which the expression starts, from 1."""
    code: str
    """The statement on one line, escaped and truncated; empty if the file cannot be read."""
    columns: tuple[int, int] | None = field(default=None, compare=False)
    """Start and end of the expression in `line`, in characters from 0; None if Python does not report them."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A value that a port computed."""

    name: str
    """The framework's name, such as `aten.mm.default`, `dot_general` or `numpy.matmul`."""
    value: np.ndarray
    """The result in float64, right after the operation; a complex one has a last axis (real, imaginary)."""
    inputs: tuple[int, ...]
    """Indices, in the record, of the operations that computed its inputs; parameters and tokens have none."""
    stack: tuple[Source, ...]
    """The line of the port that ran it and its callers, innermost first; empty in a framework's threads."""
    grows: bool = False
    """Whether it stacks the iterations of a loop whose value grows; missing numbers of an iteration are 0."""

    @property
    def source(self) -> Source | None:
        """Return the line that ran it."""
        return self.stack[0] if self.stack else None

    def line_apart(self, others: Iterable[Operation]) -> Source | None:
        """Return the innermost line that runs none of the right `others` with the same source.

        The arguments that this line passed are wrong. Return the operation's own source if there is no such line.
        """
        alike = (each.stack for each in others if each.stack[:1] == self.stack[:1])
        elsewhere = {line for stack in alike for line in stack}
        return next((line for line in self.stack if line not in elsewhere), self.source)
