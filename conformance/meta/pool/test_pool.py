"""Test the rows of the pool, and the judgment of answers. `python -m meta.measure` runs the trials."""

import ast
import random
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meta.pool import judge
from meta.pool.bug import Bug, PoolError, read, text_of
from meta.pool.judge import MEASURES
from meta.pool.port import CASES, FILES, differ, is_right, modules_with, pool, probes_called
from meta.pool.trials import KINDS, SEVERAL, Trial, are_apart, failures, kind_of, sampled, several_trials, single_trials
from meta.trial import Measure, shares
from transparity_conformance.capabilities.faults import FAULTS
from transparity_conformance.report.report import Cause, Divergence, Report

OF_CAPABILITIES = [
    fault for subject, faults in FAULTS.items() if subject not in ("sharding", "micro-batches") for fault in faults
]

ROWS = list(pool().values())


def drawn(rows: list[Bug], count: int) -> list[tuple[str, Bug]]:
    """Draw `count` rows, each with a configuration. A row's id seeds its draws, so a new row does not change the draws
    of other rows."""
    draws = sorted((random.Random(bug.id).random(), bug.id, bug) for bug in rows)[:count]
    return [
        (random.Random(name).choice([case for case in CASES if bug.runs_in(CASES[case])]), bug)
        for _, name, bug in draws
    ]


def test_every_row_applies_and_compiles_and_runs_somewhere() -> None:
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    for bug in ROWS:
        text = bug.text()
        compile(text, bug.file, "exec")
        assert [part for part in bug.lines if part not in text and part not in texts[1]] == [], bug.id
        assert [part for part in bug.uses if not any(part in each for each in texts)] == [], bug.id
        assert any(bug.runs_in(config) for config in CASES.values()), bug.id
        assert bug.right_lines(), bug.id


def test_the_port_imports_nothing_that_it_is_compared_with() -> None:
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            assert not [name for name in names if name.startswith(("transparity", "meta.pool"))], path.name


def test_every_catalogued_fault_of_a_capability_is_in_the_pool() -> None:
    catalogued = {(fault.id, fault.says) for fault in OF_CAPABILITIES}  # several kinds of cache may list a fault
    made = Counter(cause for bug in ROWS if bug.shows for cause in bug.causes)
    assert made == Counter(id for id, _ in catalogued)


@pytest.mark.parametrize("case", ["batch-norm", "whisper", "clip-vision", "llama"])
def test_the_port_without_a_bug_is_right_at_every_tap(case: str) -> None:
    probe = probes_called(case)["mixed"]
    built = type("Showing", (modules_with(()).Model,), {"taps": True})(probe.config, probe.parameters)
    shown = built(**probe.inputs)
    assert shown.keys() == probe.oracle.expected.keys()
    for name, expected in probe.oracle.expected.items():
        assert abs(shown[name].double().numpy() - expected).max() <= probe.oracle.budget(name, "float32"), name


@pytest.mark.parametrize(
    ("case", "bug"), drawn([bug for bug in ROWS if kind_of(bug) in ("fault", "uncatalogued", "odd")], 40), ids=str
)
def test_a_bug_changes_the_logits(case: str, bug: Bug) -> None:
    """Expect an effect in this configuration, or in another configuration that runs the bug's line."""
    others = [name for name in CASES if bug.runs_in(CASES[name])]
    assert any(differ(name, (), (bug,)) for name in [case, *others])


@pytest.mark.parametrize(("case", "bug"), drawn([bug for bug in ROWS if bug.control], 40), ids=str)
def test_a_control_is_right(case: str, bug: Bug) -> None:
    assert is_right(case, (bug,))


def test_there_are_as_many_trials_as_promised() -> None:
    assert sum(bug.control for bug in ROWS) >= 110
    assert len({bug.causes[0] for bug in ROWS if kind_of(bug) == "fault"}) >= 115
    assert sum(kind_of(bug) in ("uncatalogued", "odd") for bug in ROWS) >= 45
    assert {each.kind for each in MEASURES} - {""} == set(KINDS)


def test_several_bugs_change_lines_and_taps_of_their_own() -> None:
    for trial in several_trials("triple", 0)[:9]:
        assert are_apart(trial.bugs) and len(trial.bugs) == 3
        text_of(FILES[1], [bug for bug in trial.bugs if bug.path == FILES[1]])
    scale, twice = pool()["attention-scale-none"], pool()["attention-scale-twice"]
    assert not are_apart([scale, twice])


def test_a_sample_has_every_cause_as_often_as_the_next() -> None:
    chosen = [each for each in sampled(single_trials("fault"), 20) if each.view == "logits"]
    assert len({trial.bugs[0].causes[0] for trial in chosen}) == len(chosen) == 20


SCORES, OUTPUT = "encoder.layers.0.self_attention.scores", "encoder.layers.0.output"
SCALE, BIAS = pool()["attention-scale-none"], pool()["bias-dropped-up-of-one-layer"]


def answer(*places: tuple[str, str], tied: tuple[str, ...] = (), residual: float = 0.0) -> dict[str, Any]:
    faults = []
    for where, name in places:
        causes = [{"mistake": name, "says": name, "at": "", "residual": residual}] if name else []
        faults.append({"where": where, "causes": causes, "indistinguishable": tied, "budget": 0.1, "source": None})
    verdict = "diverges" if places else "agrees"
    return {"verdict": verdict, "error": "", "faults": faults, "audit": {}, "notes": [], "seconds": 1.0}


def test_a_wrong_place_and_a_wrong_name_are_wrong() -> None:
    right = answer((SCORES, "attention-scale"))
    assert judge.is_placed([SCALE], right) and judge.is_named([SCALE], right)
    assert not judge.is_placed([SCALE], answer((SCORES, "attention-scale"), (OUTPUT, "")))
    assert not judge.is_placed([SCALE], answer())
    assert not judge.is_named([SCALE], answer((SCORES, "weight-transpose")))
    assert not judge.is_named([SCALE], answer((SCORES, "")))
    assert judge.is_named([SCALE], answer((SCORES, "weight-transpose"), tied=("attention-scale",)))


def test_one_of_two_bugs_is_named_only_if_the_other_is_not_denied() -> None:
    pair = [SCALE, BIAS]
    assert judge.one_named(pair, answer(("logits", "attention-scale"), ("logits", "bias-dropped")))
    assert judge.one_named(pair, answer(("logits", "attention-scale"), ("logits", "")))
    assert judge.one_named(pair, answer(("logits", "attention-scale"), residual=1.0))
    assert not judge.one_named(pair, answer(("logits", "attention-scale")))
    assert not judge.one_named(pair, answer(("logits", "")))
    tied = answer(("logits", "attention-scale"))
    tied["faults"][0]["indistinguishable"] = ["bias-dropped"]
    assert not judge.one_named(pair, tied)
    assert not judge.nothing_else_named(pair, answer(("logits", "norm-eps")))


def test_a_certain_name_of_an_odd_bug_is_wrong() -> None:
    odd = [pool()["scores-of-one-head-0.5"]]
    assert not judge.is_unnamed(odd, answer((SCORES, "attention-scale")))
    assert judge.is_unnamed(odd, answer((SCORES, "attention-scale"), residual=1.0))
    assert judge.is_unnamed(odd, answer((SCORES, "")))
    assert not judge.is_unexplained(odd, answer((SCORES, "attention-scale"), residual=1.0))
    assert not judge.is_unnamed(odd, answer())


def test_of_two_bugs_with_one_name_the_line_tells_which_was_named() -> None:
    bugs = [pool()["bias-dropped-down"], pool()["bias-dropped-head"]]
    [first, *_] = sorted(bugs[1].right_lines(bugs[:1]))
    fault = answer(("logits", "bias-dropped"))["faults"][0]
    fault["source"] = {"file": "model.py", "line": first, "code": ""}
    assert judge.bugs_named(bugs, fault) == bugs[1:]


def test_a_checker_that_always_agrees_reaches_no_target_but_one() -> None:
    single = {kind_of(bug): (bug,) for bug in ROWS}
    trials = [
        Trial(each.kind, "pre-norm", single.get(each.kind, (SCALE, BIAS)), each.view or "taps") for each in MEASURES
    ]
    reached = [share.title for share in shares(MEASURES, [(trial, answer()) for trial in trials]) if share.is_reached]
    assert reached == ["no false alarm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "measure", [each for each in MEASURES if each.kind not in ("", *SEVERAL, "draft")], ids=lambda each: each.title
)
def test_the_checker_reaches_a_measure_on_one_trial(measure: Measure) -> None:
    trials = [each for each in single_trials(measure.kind) if measure.view in ("", each.view) and each.case in CASES]
    trial = next(each for each in sampled(trials, 1, seed=1) if each.acts())
    found = trial.run()
    assert measure.mark(trial, found), f"{trial}: {judge.says(found)}, not {failures(trial, found)}"


ROW = """
    id = "a"
    story = "s"
    file = "meta.py"
    old = "x"
    new = "y"
    causes = ["norm-eps"]
"""


def toml(tmp_path: Path, row: str) -> list[Bug]:
    path = tmp_path / "subject.toml"
    path.write_text(f"[[bug]]\n{textwrap.dedent(row)}", encoding="utf-8")
    return read(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (ROW + 'color = "red"', "unknown field 'color'"),
        (ROW.replace('old = "x"', ""), "changes nothing"),
        (ROW.replace('causes = ["norm-eps"]', ""), "has no causes"),
    ],
)
def test_a_row_that_describes_no_bug_is_refused(row: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=message):
        toml(tmp_path, row)


def test_a_place_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (bug,) = toml(tmp_path, ROW.replace("meta.py", str(tmp_path / "code.py")))
    for text, message in (("z", "has 0 places"), ("x x", "has 2 places")):
        (tmp_path / "code.py").write_text(text)
        with pytest.raises(PoolError, match=message):
            bug.text()
    (second,) = toml(tmp_path, ROW.replace("meta.py", str(tmp_path / "code.py")) + "nth = 2")
    assert second.text() == "x y"


def test_right_lines_are_those_that_change_their_neighbours_and_those_that_are_named(tmp_path: Path) -> None:
    (bug,) = toml(tmp_path, ROW.replace("meta.py", str(tmp_path / "code.py")) + 'lines = ["caller"]')
    (tmp_path / "code.py").write_text("a\nb\nx\nd\ne\ncaller\n")
    assert bug.right_lines() == {2, 3, 4, 6}


def test_what_is_told_of_planted_bugs_is_judged() -> None:
    rows = pool()
    scale, keys = rows["attention-scale-width"], rows["rotary-missing-key"]

    def told(where: str, *names: str) -> dict[str, Any]:
        causes = [{"mistake": name, "says": name, "at": "", "residual": 0.0} for name in names]
        return {"where": where, "causes": causes, "indistinguishable": []}

    right = [told("decoder.layers.0.self_attention.scores", "attention-scale")]
    right += [told("decoder.layers.0.self_attention.key_rotated", "rotary-missing")]
    both = [scale, keys]
    assert judge.falsehoods(both, {"faults": right, "nothing_else": True}) == []
    assert judge.falsehoods(both, {"faults": right[:1], "nothing_else": True}) == [judge.NOTHING_ELSE]
    assert judge.falsehoods(both, {"faults": [told("logits")], "nothing_else": False}) == []
    false = told("decoder.layers.0.self_attention.query", "rotary-rows")
    assert judge.falsehoods(both, {"faults": [*right, false]}) == ["rotary-rows"]
    tied = told("logits", "rotary-rows") | {"indistinguishable": ["rotary-missing"]}
    tied["causes"][0]["at"] = "decoder.layers.0.feed_forward.hidden"
    assert judge.falsehoods([keys], {"faults": [tied]}) == []
    elsewhere = told("decoder.layers.0.feed_forward.hidden", "attention-scale")
    excused = elsewhere | {"indistinguishable": ["rotary-missing"]}
    assert judge.falsehoods(both, {"faults": [excused]}) == ["attention-scale at decoder.layers.0.feed_forward.hidden"]
    assert judge.falsehoods([scale], {"faults": [elsewhere]}) == [
        "attention-scale at decoder.layers.0.feed_forward.hidden"
    ]


@pytest.mark.parametrize(("explained", "expected"), [(1.0, True), (0.5, False)])
def test_a_report_that_promises_agreement_states_that_nothing_else_differs(explained: float, expected: bool) -> None:
    cause = Cause("attention-scale", "s", None, 0.0, explained)
    report = Report("llama", "diverges", "logits", (Divergence("logits", 1.0, 0.1, (cause,)),))
    assert judge.answer_of(report, Path())["nothing_else"] is expected
