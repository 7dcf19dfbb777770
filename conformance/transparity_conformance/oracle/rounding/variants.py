"""The variants of right programs at which rounding is measured, by the index of the neighbouring point.

| index | tables of positions | sums over the keys |
|---|---|---|
| even | by the formulas in turn (`tables.FORMULAS`) | as the reference takes them: pairwise, in blocks |
| odd | the same | in sequence (`attention`) |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transparity_conformance.oracle.rounding.attention import summed_in_sequence
from transparity_conformance.oracle.rounding.tables import FORMULAS, built_in_float32

IN_SEQUENCE = 1
"""A variant whose sums are taken in sequence."""

TABLES = tuple(range(0, 2 * len(FORMULAS), 2))
"""Variants that differ in their tables alone, one for each formula."""


@contextlib.contextmanager
def variant(index: int) -> Iterator[None]:
    """Within the context, the reference computes as the variant of that index."""
    sums = summed_in_sequence() if index % 2 == IN_SEQUENCE else contextlib.nullcontext()
    with built_in_float32(index), sums:
        yield
