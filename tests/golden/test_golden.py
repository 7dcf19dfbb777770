"""Each port has a golden report, and each golden report belongs to a port."""

from __future__ import annotations

import json

import pytest
from tests.golden.golden import CASES, FILE, summary

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))

SLOW = ("recorded: ", "fixed, wrong", "form: transposed, wrong", "sizes: length 17 of")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * name.startswith(SLOW)) for name in CASES]
)
def test_a_port_has_its_golden_report(name: str) -> None:
    assert summary(name) == GOLDEN[name]


def test_every_golden_report_is_of_a_port() -> None:
    assert list(GOLDEN) == list(CASES)
