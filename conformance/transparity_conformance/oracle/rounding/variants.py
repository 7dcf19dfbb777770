"""The variants of right programs at which rounding is measured, by the index of the neighbouring point.

| index | tables of positions | sums over the keys | recurrences | Adam's correction |
|---|---|---|---|---|
| even | by formulas in turn (`tables.FORMULAS`) | in sequence if they are many (`attention`) | in chunks | in float32 |
| odd | the same | as the reference takes them: pairwise, in blocks | step by step | in Python's numbers |

The point itself (0) is in sequence: numbers that are moved to a neighbouring point are no longer alike, so that their
roundings cancel, which those of equal weights do not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from transparity_conformance.oracle.rounding.attention import summed_in_sequence
from transparity_conformance.oracle.rounding.optimization import corrected_in_float32
from transparity_conformance.oracle.rounding.recurrence import in_chunks
from transparity_conformance.oracle.rounding.tables import FORMULAS, built_in_float32

IN_SEQUENCE = 0
"""The variant whose sums are taken in sequence, with the first formula."""

IN_BLOCKS = tuple(range(1, 2 * len(FORMULAS), 2))
"""The variants whose sums are taken as the reference takes them, one for each formula."""


@contextlib.contextmanager
def variant(index: int) -> Iterator[None]:
    """Within the context, the reference computes as the variant of that index."""
    with contextlib.ExitStack() as computing:
        computing.enter_context(built_in_float32(index))
        if index % 2 == 0:
            computing.enter_context(summed_in_sequence())
            computing.enter_context(in_chunks())
            computing.enter_context(corrected_in_float32())
        yield
