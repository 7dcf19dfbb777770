"""A sample of first drafts, and the measure itself; `nox -s power` has all of them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from meta.drafts.bugs import BUGS, Bug
from meta.drafts.draft import FILES, Draft, answers, are_apart, drafts, lines_with, right_lines, text_of
from meta.drafts.measure import bugs_named, judged
from meta.independent.measure import CONFIGS
from transparity_conformance.report.report import Cause, Divergence

SAMPLE = (3, 8, 11)
"""Numbers of drafts: both stacks with four bugs, Gemma with five, OPT with three."""


def bug_of(cause: str, part: str) -> Bug:
    return next(bug for bug in BUGS if bug.ids[0] == cause and part in bug.new)


@pytest.mark.long
@pytest.mark.parametrize("number", SAMPLE)
def test_every_bug_of_a_draft_is_named_in_one_run(number: int, tmp_path: Path) -> None:
    draft = next(itertools.islice(drafts(number + 1, tmp_path), number, None))
    found = judged(draft, tmp_path / "checked", once=True)
    assert not found.false
    assert {*found.named} == {*draft.bugs}, found.answers
    assert all(found.lines), found.answers


def test_every_bug_changes_one_place_and_acts_in_some_configuration() -> None:
    for bug in BUGS:
        assert text_of(bug.file, [bug]) != FILES[bug.file]
        assert any(bug.acts(config) for config in CONFIGS.values())
        for part in bug.at:
            assert any(part in text for text in FILES.values()), part


def test_an_edit_without_its_place_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 places"):
        text_of("model.py", [Bug(("norm-eps",), "no such line", "")])


def test_bugs_of_one_line_are_not_drawn_together() -> None:
    variance, eps = bug_of("norm-variance", "wide.var"), bug_of("norm-eps", "eps, wide = 1e-3")
    assert are_apart([variance, eps])
    assert not are_apart([variance, variance])


def test_a_draft_without_bugs_is_the_port_itself(tmp_path: Path) -> None:
    one, other = (answers(Draft("notes-lm", ()), tmp_path / name) for name in ("one", "other"))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_of_two_bugs_with_one_name_the_line_tells_which_was_named() -> None:
    up, head = bug_of("bias-dropped", "down.weight"), bug_of("bias-dropped", "weight)")
    draft = Draft("notes-lm", (up, head))
    [line] = lines_with(text_of("model.py", draft.bugs), head.new)
    cause = Cause("bias-dropped", "", None, 0.0, 1.0)
    fault = Divergence("logits", 1.0, 0.0, (cause,), source={"file": "model.py", "line": line, "code": ""})
    assert ("model.py", line) in right_lines(draft, head)
    assert bugs_named(draft, fault) == [head]
