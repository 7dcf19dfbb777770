"""What a port computes tells causes apart that its logits do not; where nothing does, both are named."""

from __future__ import annotations

from typing import Any

import pytest

from meta.pool.bug import View
from meta.pool.judge import is_named, is_placed, place_of, says
from meta.pool.port import pool
from meta.pool.trials import Trial

Answer = dict[str, Any]


def answer_to(case: str, id: str, view: View = "operations") -> Answer:
    """The answer to a port with a bug of the pool."""
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
"""A factor before a norm shows in eps only; dropout is placed at the tap that it drops."""


@pytest.mark.parametrize(("case", "id", "view", "place"), RIGHT, ids=str)
def test_a_cause_that_operations_tell_is_named_and_placed(case: str, id: str, view: View, place: str) -> None:
    answer = answer_to(case, id, view)
    assert_right(answer, id)
    assert not place or place_of(answer["faults"][0]) == place


@pytest.mark.long
def test_an_exchange_that_nothing_but_a_name_tells_from_another_is_listed_with_it() -> None:
    """C and B of a state-space model, exchanged where they are made or where they are used."""
    answer = answer_to("mamba2", "weight-swapped-recurrent")
    assert_right(answer, "weight-swapped-recurrent")
    assert {fault["causes"][0]["mistake"] for fault in answer["faults"]} == {"state-space"}
    assert {tuple(fault["indistinguishable"]) for fault in answer["faults"]} == {("weight-swapped",)}
    shown = answer_to("mamba2", "state-space-exchanged", "taps")
    assert not any(fault["indistinguishable"] for fault in shown["faults"]), "the port names them"


@pytest.mark.long
def test_a_norm_in_front_of_a_convolution_is_not_taken_for_the_convolution() -> None:
    """Its output is a little off, so that sigmoid of the convolved is found before the convolved."""
    answer = answer_to("mamba2", "norm-eps-rms-1e-3")
    assert_right(answer, "norm-eps-rms-1e-3")
    assert {cause["mistake"] for fault in answer["faults"] for cause in fault["causes"]} == {"norm-eps"}


@pytest.mark.long
@pytest.mark.parametrize("id", ["convolution-padding-causal-both", "convolution-activation-none-both"])
def test_two_convolutions_that_are_wrong_alike_are_each_found(id: str) -> None:
    answer = answer_to("whisper", id)
    assert_right(answer, id)
    places = [fault["where"] for fault in answer["faults"]]
    assert places == ["encoder.first_convolution", "encoder.second_convolution"]


@pytest.mark.long
def test_norms_in_another_place_are_placed_where_that_first_acts() -> None:
    answer = answer_to("notes-lm", "norm-placement-post-for-pre")
    assert_right(answer, "norm-placement-post-for-pre")
    assert place_of(answer["faults"][0]) == "decoder.layers.0.self_attention_norm"
