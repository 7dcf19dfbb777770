"""Fuzz every entry point with a few inputs; `nox -s fuzz` tries all 20,000 inputs."""

from pathlib import Path

import pytest
from hypothesis import strategies as st

from meta.fuzz.campaign import DOORS, TOTAL, Door, inputs_of, judged
from meta.fuzz.outcome import MEGABYTES, SECONDS, TooLong, WrongAnswerError, outcome
from meta.fuzz.strategies import Draw
from transparity.errors import TransparityError

SAMPLE = 300
"""The number of inputs for all entry points together; `--every-case` tries ten times as many."""


@pytest.mark.parametrize("door", DOORS, ids=lambda door: str(door.__name__))
def test_every_input_is_a_verdict_or_a_sentence(door: Door, pytestconfig: pytest.Config) -> None:
    found = judged(door, inputs_of(door, SAMPLE * (10 if pytestconfig.getoption("--every-case") else 1)))
    assert found
    assert [each.violation for each in found if each.violation] == []


def test_there_are_twenty_thousand_inputs() -> None:
    assert TOTAL == 20_000
    assert sum(inputs_of(door, SAMPLE) for door in DOORS) >= SAMPLE


@pytest.mark.parametrize(
    ("error", "violation"),
    [
        (ValueError("\x1b[2J"), "raised ValueError: '\\x1b[2J'"),
        (SystemExit(0), "raised SystemExit"),
        (TooLong(), f"took longer than {SECONDS:g} s"),
        (WrongAnswerError("it agrees"), "it agrees"),
        (TransparityError("no end"), "not a sentence: no end"),
        (TransparityError("x" * 1000 + "."), "too long: xxx"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_no_input_is_owed_is_found(error: BaseException, violation: str) -> None:
    def run() -> str:
        raise error

    assert outcome(run).violation.startswith(violation)


def test_memory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([200.0, 200.0 + MEGABYTES + 1])
    monkeypatch.setattr("meta.fuzz.outcome.peak", lambda: next(peaks))
    assert outcome(lambda: "").violation == "the memory grew by 1001 MB"


def test_a_violation_is_made_as_small_as_it_can_be() -> None:
    def door(draw: Draw, folder: Path) -> str:
        number = draw(st.integers(0, 1000))
        assert number < 500, number
        return str(number)

    first, second = judged(door, 100), judged(door, 100)
    assert first[-1].violation.startswith("raised AssertionError: '500")
    assert [each.what for each in first] == [each.what for each in second]
