"""Test the common rules on artificial logits, and test the judgment of answers. `nox -s exam` runs the exam itself."""

import dataclasses
import json
import warnings
from typing import Any

import numpy as np
import pytest

from meta.exam import page
from meta.exam.bug import exam, twins
from meta.exam.rules import RULES, failed, scores
from meta.pool.bug import Bug
from meta.pool.judge import judged
from transparity_conformance.report.causes import meanings

RIGHT = np.random.default_rng(0).normal(size=(5, 11))


def test_a_rule_passes_equal_logits_and_refuses_others_or_none() -> None:
    lengths = {rule.tokens for rule in RULES.values()}
    right = dict.fromkeys(lengths, RIGHT)
    assert failed(dict.fromkeys(lengths, RIGHT), right) == []
    for answer in (None, -RIGHT, RIGHT[:, :-1], np.full_like(RIGHT, np.nan)):
        assert failed(dict.fromkeys(lengths, answer), right) == list(RULES)


def test_every_bug_of_the_exam_has_its_place_and_a_twin() -> None:
    bugs = exam()
    for bug in bugs.values():
        assert bugs[twins()[bug.id]].is_twin
        if not bug.is_twin and bug.path.is_file():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the warnings concern other people's code
                compile(bug.text(), bug.file, "exec")
            text = bug.text()
            assert [part for part in bug.lines if part not in text] == [], bug.id


BUG = Bug("b", "g", "s", "", "none.py", ({"old": "", "new": ""},), causes=("norm-eps",), told=("eps",), sites=("norm",))


def answer(verdict: str, *causes: str, **others: Any) -> dict[str, Any]:
    named = [{"mistake": cause, "says": cause, "at": ""} for cause in causes]
    fault = {"where": "decoder.final_norm", "source": None, "causes": named, "indistinguishable": others.pop("or_", [])}
    faults = [fault] if verdict == "diverges" else []
    return {"verdict": verdict, "error": "", "faults": faults, "audit": {}, "rules": [], "seconds": 1.0, **others}


def test_a_cause_names_a_bug_first_or_beside_what_it_cannot_be_told_from() -> None:
    assert judged(BUG, answer("diverges", "norm-eps")).named
    assert judged(BUG, answer("diverges", "norm-kind", or_=["norm-eps"])).named
    wrong = judged(BUG, answer("diverges", "norm-kind"))
    assert (wrong.detected, wrong.named, wrong.falsely, wrong.placed) == ("verdict", False, ("norm-kind",), True)
    assert judged(BUG, answer("diverges", "norm-eps", "activation")).falsely == ("activation",)
    assert not judged(BUG, answer("agrees")).detected


def test_an_error_or_an_audit_detects_what_it_tells_by_name() -> None:
    assert judged(BUG, answer("", error="the tensor eps is missing")).detected == "error"
    assert judged(BUG, answer("", error="something else")).detected == ""
    found = answer("agrees", audit={"eps": "ignored"})
    assert judged(BUG, found).detected == "audit"
    assert judged(BUG, found, twin=found).detected == ""


def test_a_control_that_is_called_a_bug_counts_against_the_checker() -> None:
    control = Bug("c", "g", "s", "", "none.py", ({"old": "", "new": ""},), control=True)
    found = [judged(control, answer("diverges", "norm-eps")), judged(control, answer("agrees"))]
    alone = scores([*map(vars, found)])[-1]
    assert (alone.right, alone.of, alone.is_reached) == (1, 2, False)


def test_an_audit_of_a_control_may_list_what_is_told_alone() -> None:
    control = dataclasses.replace(BUG, control=True, told=("eps",))
    assert judged(control, answer("agrees", audit={"eps": "ignored"})).detected == ""
    assert judged(control, answer("agrees", audit={"theta": "ignored"})).detected == "audit"


def test_the_pages_are_what_the_published_results_say() -> None:
    for file in page.PARTS:
        text = file.read_text(encoding="utf-8")
        assert page.rendered(file, text, page.read()) == text, "run python -m meta.exam.page"
    assert page.in_readme(readme := page.README.read_text(encoding="utf-8"), page.read()) == readme
    assert page.PLOT.is_file()


def test_a_page_without_a_place_for_a_part_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0 comments that begin the part 'beside rules'"):
        page.rendered(page.PAGE, "", page.read())


def test_the_published_results_are_those_of_bugs_that_there_are() -> None:
    stored = json.loads(page.FILE.read_text(encoding="utf-8"))
    assert stored.keys() <= exam().keys()
    assert {key for row in stored.values() for key in row if key in page.TOLD} == set()


def test_a_named_cause_has_its_title_and_another_answer_is_unchanged() -> None:
    shown = page.answer("logits, model.py:3: norm-eps")
    assert shown == f"logits, model.py:3: [{meanings()['norm-eps'].title}](causes/norm-eps.md)"
    assert page.answer("logits, model.py:3: unexplained") == "logits, model.py:3: unexplained"
    assert page.answer("agrees") == "agrees"
    causes = {row["says"].rpartition(": ")[2] for row in page.read().values() if ", " in row["says"].partition(": ")[0]}
    assert {cause for cause in causes if " " not in cause} - {"unexplained"} <= meanings().keys()


def test_a_result_that_is_taken_in_again_keeps_what_was_found_at_first_sight() -> None:
    name, rows = next(iter(exam())), dict[str, page.Row]()
    for verdict in ("diverges", "agrees"):
        rows = page.merged(rows, {name: answer(verdict, "norm-eps")})
    assert (rows[name]["detected"], rows[name]["first"]["detected"]) == ("", "verdict")
    assert [each["detected"] for each in page.judgments(rows, first=True)] == ["verdict"]
    assert page.judgments({name: {**rows[name], "first": None}}, first=True) == []
