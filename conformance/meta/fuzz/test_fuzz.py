"""A sample of the campaign, stratified over the kinds; `nox -s fuzz` runs all of it."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from meta.fuzz.campaign import KINDS, TOTAL, campaign
from meta.fuzz.outcome import SECONDS, TooLong, outcome
from transparity.errors import TransparityError

SAMPLE = 303


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_every_input_is_a_verdict_or_a_sentence(kind: str) -> None:
    found = list(campaign(SAMPLE, only=kind))
    assert not [f"{item.kind} {item.index}: {item.violation}" for item in found if item.violation]


def test_there_are_twenty_thousand_inputs() -> None:
    assert TOTAL == 20_000
    assert sum(max(1, round(SAMPLE * count / TOTAL)) for count in KINDS.values()) >= SAMPLE


def fill(random: Random) -> str:
    """Take more memory than an input may."""
    return str(np.ones(2 * 10**8).sum())


@pytest.mark.parametrize(
    ("error", "violation"),
    [
        (ValueError("\x1b[2J"), "raised ValueError: '\\x1b[2J'"),
        (SystemExit(0), "raised SystemExit"),
        (TooLong(), f"no answer within {SECONDS:g} s"),
        (TransparityError("no end"), "no sentence: no end"),
        (TransparityError("x" * 1000 + "."), "too long: xxx"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_no_input_is_owed_is_found(error: BaseException, violation: str) -> None:
    def run(random: Random) -> str:
        raise error

    assert outcome("test", 0, run).violation.startswith(violation)


def test_memory_is_found() -> None:
    assert outcome("test", 0, fill).violation.startswith("the memory grew by")


def test_the_same_numbers_give_the_same_input() -> None:
    one, other = (outcome("test", 3, lambda random: str(random.random()), seed=1) for _ in range(2))
    assert one.what == other.what != outcome("test", 4, lambda random: str(random.random()), seed=1).what
