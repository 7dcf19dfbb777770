"""An operation of a port: its value, the operations that computed its inputs, and the line that ran it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Source:
    """A line of the port's code that was on the stack."""

    file: str
    line: int
    """The line on which the expression starts, counted from 1."""
    code: str
    """The statement, escaped, truncated and joined to one line; empty if the file cannot be read."""
    columns: tuple[int, int] | None = field(default=None, compare=False)
    """Start and end of the expression in `line`, in characters from 0; None if Python does not report them."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A value that a port computed, and how it was computed."""

    name: str
    """The framework's name, such as `aten.mm.default`, `dot_general` or `numpy.matmul`."""
    value: np.ndarray
    """The result in float64, copied right after the operation. A complex result has a last axis (real, imaginary)."""
    inputs: tuple[int, ...]
    """The indices of the operations that computed the inputs; parameters and tokens are not listed."""
    stack: tuple[Source, ...]
    """The line of the port that ran the operation, and its callers, innermost first.

    In a framework's own threads, there are no such lines.
    """
    grows: bool = False
    """Whether the value stacks the iterations of a loop whose result grows; shorter iterations end in zeros."""

    @property
    def source(self) -> Source | None:
        return self.stack[0] if self.stack else None

    def line_apart(self, others: Iterable[Operation]) -> Source | None:
        """Return the line that passed wrong arguments: the innermost line on the stack that ran none of `others`.

        `others` are correct operations; only those with the same source line are considered. Return the operation's own
        line if no such line exists.
        """
        alike = (each.stack for each in others if each.stack[:1] == self.stack[:1])
        elsewhere = {line for stack in alike for line in stack}
        return next((line for line in self.stack if line not in elsewhere), self.source)
