"""The shares of right answers of an exam, and those of the rules in use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meta.exam.bug import Bug
from meta.exam.judge import Judged
from meta.exam.rules import RULES

TARGETS = {"detected": 0.97, "named": 0.85, "right line": 0.85, "controls and twins left alone": 1.0}


@dataclass(frozen=True)
class Share:
    """How many of how many."""

    title: str
    right: int
    of: int

    @property
    def is_reached(self) -> bool:
        return self.right >= TARGETS.get(self.title, 0) * self.of

    def __str__(self) -> str:
        target = f" (wanted {TARGETS[self.title]:.0%})" if self.title in TARGETS else ""
        return f"{self.title}: {self.right} of {self.of}, {self.right / max(self.of, 1):.1%}{target}"


def scores(bugs: Sequence[Bug], found: Sequence[Judged]) -> list[Share]:
    """The checker's shares: of all bugs, those named and placed; of those that diverge in a forward pass, the lines."""
    pairs = list(zip(bugs, found, strict=True))
    wrong = [each for bug, each in pairs if not bug.control]
    right = [each for bug, each in pairs if bug.control]
    with_line = [each for each in wrong if each.line is not None]
    placed = [each for each in wrong if each.placed is not None]
    return [
        Share("detected", sum(bool(each.detected) for each in wrong), len(wrong)),
        Share("placed", sum(bool(each.placed) for each in placed), len(placed)),
        Share("named", sum(each.named for each in wrong), len(wrong)),
        Share("falsely named", sum(bool(each.falsely) for each in wrong), len(wrong)),
        Share("right line", sum(bool(each.line) for each in with_line), len(with_line)),
        Share("controls and twins left alone", sum(not each.detected for each in right), len(right)),
    ]


def rule_scores(bugs: Sequence[Bug], found: Sequence[Judged]) -> dict[str, tuple[Share, Share]]:
    """For each rule, the bugs that it detects, and the controls and twins that it fails."""
    pairs = list(zip(bugs, found, strict=True))
    wrong = [each for bug, each in pairs if not bug.control]
    right = [each for bug, each in pairs if bug.control]
    return {
        name: (
            Share(rule.says, sum(name in each.rules for each in wrong), len(wrong)),
            Share(rule.says, sum(name in each.rules for each in right), len(right)),
        )
        for name, rule in RULES.items()
    }
