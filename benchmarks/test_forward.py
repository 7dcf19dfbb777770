"""Forward throughput: every backend × preset × batch × length."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import Case


def test_forward(case: Case, measure: Callable[[Case], None]) -> None:
    measure(case)
