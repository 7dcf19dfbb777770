"""What was measured, in words: shares of a budget, and the agreement matrix in sentences."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from transparity_conformance.report.matrix import Cell, Matrix, NotCompared, badness


def percent(share: float) -> str:
    """A share of a budget that is kept, to two significant digits."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{_two_digits(100 * share)} %"


def times(share: float) -> str:
    """A share of a budget that is not kept: never written as 1."""
    if not math.isfinite(share):
        return "∞"
    if share < 1.05:
        return ">1×"
    return f"{share:.0e}×".replace("e+0", "e").replace("e+", "e") if share >= 9999.5 else _two_digits(share) + "×"


def _two_digits(number: float) -> str:
    return f"{number:#.2g}" if 0 < number < 9.95 else f"{number:.0f}"


def share_in_words(share: float) -> str:
    """`43 %`, or `3.2×` if it is more than all of it."""
    return percent(share) if share <= 1 else times(share)


def cell_in_words(cell: Cell | None) -> str:
    """`43 %`, `exact`, `FAILS 3.2×`, `breaks` (as the document prints it), or `·` where nothing was compared."""
    if cell is None:
        return "·"
    if not cell.agrees:
        # neither an exact claim nor one that should have broken has a budget to be a multiple of
        worst = None if cell.exact else cell.worst
        return "FAILS" if worst is None or worst.agrees else f"FAILS {times(worst.share)}"
    if cell.worst is None:
        return "breaks"
    return "exact" if cell.exact else percent(cell.worst.share)


def summary(matrix: Matrix, skipped: Sequence[str] = (), not_compared: Sequence[NotCompared] = ()) -> str:
    """The matrix in one line."""
    return "; ".join([*extent(matrix, skipped, not_compared), verdict_in_words(matrix)])


def extent(matrix: Matrix, skipped: Sequence[str] = (), not_compared: Sequence[NotCompared] = ()) -> list[str]:
    """How much was compared, the worst of it, and how much was not."""
    backends = len({column.backend for column in matrix.columns})
    comparisons = sum(cell.comparisons for cell in matrix.cells.values())
    counts = [count(len(matrix.claims), "claim"), count(comparisons, "comparison")]
    parts = [f"{', '.join(counts)} over {count(backends, 'backend')}"]
    worst = max((cell.worst for cell in matrix.cells.values() if cell.worst), key=badness, default=None)
    if worst is not None and worst.share != 0:
        place = f"{worst.claim}, {worst.subject}, {worst.case}: {worst.where}"
        parts.append(f"worst share {share_in_words(worst.share)} ({place})")
    left_out = ((skipped, "skipped"), (not_compared, "not compared"))
    return parts + [f"{len(items):,} {what}" for items, what in left_out if items]


def verdict_in_words(matrix: Matrix) -> str:
    """`all agree`, how many claims fail, or that there is nothing to go by."""
    failing = {group.worst.claim for group in matrix.disagreements}
    if failing:
        return f"{len(failing)} of {count(len(matrix.claims), 'claim')} FAIL" + ("S" if len(failing) == 1 else "")
    return "all agree" if matrix.cells else "nothing was compared"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def not_compared_in_words(not_compared: Sequence[NotCompared]) -> list[str]:
    """One line for each reason: the claims, and whom they were not made about."""
    subjects: dict[tuple[str, str], list[str]] = defaultdict(list)
    for claim, subject, reason in not_compared:
        subjects[claim, reason].append(str(subject))
    claims: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (claim, reason), names in subjects.items():
        claims[", ".join(dict.fromkeys(names)), reason].append(claim)
    return [f"{', '.join(names)} ({whom}): {reason}" for (whom, reason), names in claims.items()]


def describe_error(error: Exception) -> str:
    """An exception in one clause: its kind, and the beginning of what it says."""
    says = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{': ' + says if says else ''}".rstrip(".")


DECADES = 6
"""How far below the largest error a bar still has a height."""


def height(error: float, largest: float) -> float:
    """0 to 1 by the logarithm, over so many decades below the largest."""
    if not math.isfinite(error):
        return 1.0
    if error <= 0 or not math.isfinite(largest):
        return 0.0
    return max(0.0, 1 + math.log10(error / largest) / DECADES)
