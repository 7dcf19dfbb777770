"""The calls on which a port is wrong: in one sentence, and the first wrong length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SECONDS_OF_A_PORT = 10.0
"""Seconds of the port's own time, after which only the calls that tell most are made: 20 times what PyTorch needs for
all, so that a busy machine leaves none out; a port that compiles for every shape may need more."""

HISTORY = "an object that is built for this call alone is right: something is kept between calls"
"""The cause of a wrong call that is right in a fresh object."""


@dataclass(frozen=True)
class Call:
    """A call that was compared."""

    name: str
    length: int
    is_wrong: bool


def boundary(calls: Sequence[Call]) -> str:
    """The calls on which a port is wrong, in one sentence."""
    names = [each.name for each in calls if each.is_wrong]
    lengths = {each.length for each in calls if each.is_wrong}
    right = {each.length for each in calls if not each.is_wrong}
    listed = "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if names[4:] else "")
    text = f"wrong on {len(names)} of {len(calls)} calls at other sizes ({listed})"
    if right and max(right) < min(lengths):
        return f"{text}; right up to length {max(right)}, wrong from length {min(lengths)} on"
    return text


def bisect(calls: Sequence[Call], call: Callable[[int], bool | None]) -> None:
    """Find the first wrong length of a port that is right up to some length and wrong beyond.

    Args:
        calls: what was compared.
        call: calls a length; returns whether it is wrong, or None if there is no answer, which ends the search.
    """
    right = max((each.length for each in calls if not each.is_wrong), default=0)
    wrong = min((each.length for each in calls if each.is_wrong), default=0)
    while 0 < right < wrong - 1:
        middle = (right + wrong) // 2
        is_wrong = call(middle)
        if is_wrong is None:
            return
        right, wrong = (right, middle) if is_wrong else (middle, wrong)
