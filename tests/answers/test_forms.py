"""Answers in another form than logits are recognised by their numbers, and the headline says what to return."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.alignment.test_alignment import GPT2, Gpt2, ScaledByTheWidth

from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.report import Report
from transparity_conformance.running.loading import load_port

Change = Callable[[torch.Tensor], torch.Tensor]


def answering(change: Change, kind: type[Gpt2] = Gpt2) -> type[Gpt2]:
    class Answering(kind):  # type: ignore[misc, valid-type]
        def __call__(self, tokens: Any) -> torch.Tensor:
            return change(super().__call__(tokens))

    return Answering


class HiddenStates(Gpt2):
    def __call__(self, tokens: Any) -> torch.Tensor:
        kept: list[torch.Tensor] = []

        def norm(name: str, x: torch.Tensor) -> torch.Tensor:
            kept.append(Gpt2.norm(self, name, x))
            return kept[-1]

        self.norm = norm  # type: ignore[method-assign]
        super().__call__(tokens)
        return kept[-1]


def only_cause(report: Report) -> str:
    assert report.verdict == "diverges"
    ((cause,),) = (fault.causes for fault in report.faults)
    assert cause.says in sentence(report)
    return cause.says


RETURN = "return the logits of every position, (8, 9, 31)"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda x: x.transpose(1, 2),
            f"logits with the vocabulary before the positions are returned, (8, 31, 9): {RETURN}",
        ),
        (lambda x: x.transpose(0, 1), f"logits with the positions before the rows are returned, (9, 8, 31): {RETURN}"),
        (lambda x: x[None], f"logits with an axis too many are returned, (1, 8, 9, 31): {RETURN}"),
        (
            lambda x: F.pad(x, (0, 33)),
            f"logits of a padded vocabulary are returned, (8, 9, 64): {RETURN}, cut to its first",
        ),
        (lambda x: x.flatten(0, 1), f"logits with rows and positions in one axis are returned, (72, 31): {RETURN}"),
    ],
)
def test_a_form_that_has_all_logits_is_named_and_nothing_else_differs(change: Change, says: str) -> None:
    report = check(answering(change), config=GPT2)
    assert only_cause(report).startswith(says)
    assert sentence(report).endswith("Nothing else differs.")
    assert report.measured


@pytest.mark.parametrize(
    ("change", "says", "agrees"),
    [
        (lambda x: x[:, -1], "logits of the last position alone are returned, (8, 31)", "the last position agrees"),
        (lambda x: x[:, -1:], "logits of the last position alone are returned, (8, 1, 31)", "the last position agrees"),
        (lambda x: x[0], "logits of one row, without a batch dimension, are returned, (9, 31)", "the first row agrees"),
        (lambda x: x[:, -1].softmax(-1), "probabilities of the last position alone are returned", "position agrees"),
        (lambda x: x[:, -1].log_softmax(-1), "log-probabilities of the last position alone are", "position agrees"),
        (lambda x: x.argmax(-1), "token ids are returned, (8, 9)", "the token ids agree"),
    ],
)
def test_of_a_form_that_has_less_that_part_is_compared(change: Change, says: str, agrees: str) -> None:
    report = check(answering(change), config=GPT2)
    assert only_cause(report).startswith(says)
    assert RETURN in only_cause(report) and agrees in only_cause(report)
    assert "Nothing else differs" not in sentence(report)
    assert any(line.startswith("all that is computed before the answer") for line in report.not_compared)


def test_hidden_states_are_told_from_those_before_the_final_norm() -> None:
    assert only_cause(check(HiddenStates, config=GPT2)).startswith("hidden states are returned, (8, 9, 24)")


def test_a_part_that_is_wrong_is_said_to_differ() -> None:
    report = check(answering(lambda x: x[:, -1], ScaledByTheWidth), config=GPT2)
    assert "; the last position differs, by " in only_cause(report)


@pytest.mark.long
def test_the_rest_of_a_model_is_judged_in_its_form() -> None:
    report = check(answering(lambda x: x.transpose(1, 2), ScaledByTheWidth), config=GPT2)
    assert [fault.causes[0].mistake for fault in report.faults[:2]] == ["answer-form", "attention-scale"]
    assert report.faults[1].source is not None and report.faults[1].source["code"].startswith("att = ")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("change", "cause"), [(lambda x: x.log_softmax(-1), "logit-shift"), (lambda x: x.softmax(-1), "probabilities")]
)
def test_normalised_logits_are_a_fault_of_the_catalogue(change: Change, cause: str) -> None:
    report = check(answering(change), config=GPT2)
    assert report.faults[0].causes[0].mistake == cause
    assert "return the logits" in sentence(report)


@pytest.mark.parametrize("change", [lambda x: x.mean((1, 2)), lambda x: x[..., :-1], lambda x: x[:, :-1]])
def test_an_answer_of_no_known_form_is_of_another_shape(change: Change) -> None:
    report = check(answering(change), config=GPT2)
    assert sentence(report) == "logits: of another shape (see the notes)."


def test_a_form_is_recognised_in_a_process_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "transposed_port.py"
    file.write_text(
        "from transparity_numpy.port import build as right\n"
        "def build(config, parameters):\n"
        "    forward = right(config, parameters)\n"
        "    return lambda **tokens: forward(**tokens)['logits'].swapaxes(1, 2)\n"
    )
    report = check(load_port(f"{file}:build"), "notes-lm", isolated=True)
    assert only_cause(report).startswith("logits with the vocabulary before the positions")
    assert np.isfinite(report.faults[0].causes[0].residual)
