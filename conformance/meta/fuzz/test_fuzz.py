"""A sample of the campaign, stratified over the kinds; `nox -s fuzz` runs all of it."""

from __future__ import annotations

from random import Random

import pytest

from meta.fuzz.campaign import KINDS, TOTAL, campaign, share
from meta.fuzz.outcome import MEGABYTES, SECONDS, TooLong, outcome
from transparity.errors import TransparityError

SAMPLE = 300


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_every_input_is_a_verdict_or_a_sentence(kind: str) -> None:
    found = list(campaign(SAMPLE, only=kind))
    assert not [f"{item.kind} {item.index}: {item.violation}" for item in found if item.violation]


def test_there_are_twenty_thousand_inputs() -> None:
    assert TOTAL == 20_000
    assert sum(share(count, SAMPLE) for count in KINDS.values()) >= SAMPLE


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


def test_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([200.0, 200.0 + MEGABYTES + 1])
    monkeypatch.setattr("meta.fuzz.outcome.peak", lambda: next(peaks))
    assert outcome("test", 0, lambda random: "").violation == "the memory grew by 1001 MB"


def test_the_same_numbers_give_the_same_input() -> None:
    one, other = (outcome("test", 3, lambda random: str(random.random()), seed=1) for _ in range(2))
    assert one.what == other.what != outcome("test", 4, lambda random: str(random.random()), seed=1).what
