"""Activations distinguish causes that give equal logits; causes that nothing distinguishes are named together."""

from __future__ import annotations

from typing import Any

import pytest

from meta.pool.bug import View
from meta.pool.judge import is_named, is_placed, place_of, says
from meta.pool.port import pool
from meta.pool.trials import Trial

Answer = dict[str, Any]


def answer_to(case: str, id: str, view: View = "operations") -> Answer:
    """Check a port with a bug from the pool."""
    return Trial("fault", case, (pool()[id],), view).run()


def assert_right(answer: Answer, id: str) -> None:
    bugs = [pool()[id]]
    assert is_named(bugs, answer) and is_placed(bugs, answer), says(answer)
    assert all(fault["causes"] for fault in answer["faults"])


RIGHT: list[tuple[str, str, View, str]] = [
    ("bloom", "embedding-scale-unwanted", "operations", ""),
    ("modern-bert", "embedding-scale-unwanted", "operations", ""),
    ("deepseek", "latent-norm-eps-small", "taps", ""),
    ("qwen3-next", "gated-norm-delta-eps", "taps", ""),
    ("mamba2", "gated-norm-ssm-eps", "taps", ""),
    ("notes-lm", "dropout-active-embedding", "operations", "decoder.embedding"),
    ("notes-lm", "dropout-active-weights", "operations", "decoder.layers.0.self_attention.weights"),
    ("notes-lm", "dropout-active-sublayer", "operations", "decoder.layers.0.self_attention.output"),
]
"""Bugs, the view of the checker, and the tap where dropout is reported.

A factor before a norm changes the result only through eps.
"""


@pytest.mark.parametrize(("case", "id", "view", "place"), RIGHT, ids=str)
def test_a_cause_that_operations_tell_is_named_and_placed(case: str, id: str, view: View, place: str) -> None:
    answer = answer_to(case, id, view)
    assert_right(answer, id)
    assert not place or place_of(answer["faults"][0]) == place
