"""The shares of right answers of an exam, and those of the rules in use."""

from __future__ import annotations

from collections.abc import Sequence

from meta.exam.rules import RULES
from meta.pool.judge import Judged
from meta.trial import Share, share

TARGETS = {"detected": 0.97, "named": 0.85, "right line": 0.85, "controls and twins left alone": 1.0}


def scores(found: Sequence[Judged]) -> list[Share]:
    """The checker's shares: of all bugs, those named and placed; of those that diverge in a forward pass, the lines."""
    wrong = [each for each in found if not each.control]
    right = [each for each in found if each.control]
    counts = {
        "detected": [bool(each.detected) for each in wrong],
        "placed": [each.placed for each in wrong if each.placed is not None],
        "named": [each.named for each in wrong],
        "falsely named": [bool(each.falsely) for each in wrong],
        "right line": [each.line for each in wrong if each.line is not None],
        "controls and twins left alone": [not each.detected for each in right],
    }
    return [share(title, marks, TARGETS.get(title, 0.0)) for title, marks in counts.items()]


def rule_scores(found: Sequence[Judged]) -> dict[str, tuple[Share, Share]]:
    """For each rule, the bugs that it detects, and the controls and twins that it fails."""
    wrong = [each for each in found if not each.control]
    right = [each for each in found if each.control]

    def failing(name: str, of: Sequence[Judged]) -> Share:
        return share(RULES[name].says, [name in each.rules for each in of])

    return {name: (failing(name, wrong), failing(name, right)) for name in RULES}
