import dataclasses
import itertools

import numpy as np
import pytest
from tests.diagnosis.test_conventions import port

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import hypotheses
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.checking.check import check
from transparity_conformance.checking.stages.forward import changes_right_answers
from transparity_conformance.diagnosis.divergences import consistent, explain_all
from transparity_conformance.diagnosis.explain import Explanation, explained_by
from transparity_conformance.diagnosis.judge import with_effect
from transparity_conformance.diagnosis.probe_result import Results, compare_segments
from transparity_conformance.diagnosis.search.answer import Answer
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.fields import departures
from transparity_conformance.diagnosis.segment import layer_of, segment_of
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.check.findings import findings, sentence
from transparity_conformance.report.report import Cause, Divergence, Impact, Report

WRONG = ("attention-scale", "1/head_dim"), ("rotary-missing", "keys")


def first_probes(case: str, count: int = 3) -> dict[str, Probe]:
    return dict(itertools.islice(probes_of(MODELS[case], case).items(), count))


@pytest.fixture(scope="module")
def probes() -> dict[str, Probe]:
    return first_probes("llama")


def everywhere(probe: Probe, identity: str, variant: str = "") -> list[Hypothesis]:
    """Return the faults with the id `identity` at each group of taps, the largest group first."""
    found = [each for each in hypotheses(probe.config, [*probe.oracle.expected]) if each.fault.id == identity]
    return [each for each in found if variant in ("", each.fault.variant)]


def computed(probes: dict[str, Probe], *faults: tuple[str, str]) -> dict[str, Arrays]:
    made = {name: [everywhere(probe, *fault)[0] for fault in faults] for name, probe in probes.items()}
    return {
        name: {tap: value.astype(np.float32) for tap, value in walk(probe, {}, made[name]).items()}
        for name, probe in probes.items()
    }


def answer_of(probes: dict[str, Probe], actual: dict[str, Arrays]) -> Answer:
    return Answer.of(probes, actual, "float32", Clock(), 1)


def results_of(probes: dict[str, Probe], actual: dict[str, Arrays]) -> Results:
    return {name: compare_segments(probe, actual[name], "float32") for name, probe in probes.items()}


@pytest.mark.parametrize("is_explained", [True, False])
def test_nothing_is_certain_directly_after_an_unexplained_activation(
    probes: dict[str, Probe], is_explained: bool
) -> None:
    """The found `decoder.output` may not be the input of the port's head, so a cause at the logits may be false."""
    name, probe = next(iter(probes.items()))
    fault, actual = hypotheses(probe.config, ["logits"])[0], computed({name: probe})
    actual[name]["decoder.output"] = np.sin(actual[name]["decoder.output"])
    actual[name]["logits"] = walk(probe, actual[name], (fault,) if is_explained else ())["logits"] ** (2 - is_explained)
    answer, results = answer_of({name: probe}, actual), results_of({name: probe}, actual)
    answer.found = {"decoder.output"}
    causes = (Cause(fault.fault.id, fault.fault.description, explained=1.0),) if is_explained else ()
    every = [Divergence("decoder.output", 1.0, 0.1), Divergence("logits", 1.0, 0.1, causes)]
    explanations = {"logits": Explanation(causes, (fault,))} if is_explained else {}
    told = consistent(answer, results, every, explanations)
    assert told == [every[0], every[1].unexplained][: 1 + is_explained]


def test_a_cause_that_the_answer_does_not_need_is_not_told(probes: dict[str, Probe]) -> None:
    """A skipped layer has no norm, so a port with this layer cannot show that the norm is missing."""
    probe = next(iter(probes.values()))
    skipped = next(each for each in reversed(everywhere(probe, "layer-missing")) if len(each.sites) == 1)
    norm = f"{layer_of(skipped.sites[0])}.self_attention_norm"
    missing = next(each for each in everywhere(probe, "norm-missing") if each.sites == (norm,))
    faults = skipped, everywhere(probe, "logit-shift", "mean 0")[0]
    answer = answer_of({probe.name: probe}, {probe.name: {"logits": walk(probe, {}, faults)["logits"]}})
    told = answer.with_one_more((missing, skipped), (missing, skipped))
    assert {each.fault.id for each in told} == {each.fault.id for each in faults}


@pytest.mark.parametrize("is_true", [True, False])
def test_an_unexplained_step_to_the_logits_hides_no_true_cause(probes: dict[str, Probe], is_true: bool) -> None:
    """No cause reproduces the logits, so the causes must reproduce the last value before the logits."""
    name, probe = next(iter(probes.items()))
    where, (fault, *_) = "decoder.layers.0.self_attention.scores", everywhere(probe, *WRONG[0])
    actual = computed({name: probe}, *WRONG[: int(is_true)])
    actual[name]["logits"] = np.sin(actual[name]["logits"])
    answer = answer_of({name: probe}, actual)
    answer.found = {where, "decoder.output"}
    cause = Cause(fault.fault.id, fault.fault.description)
    every = [Divergence(where, 1.0, 0.1, (cause,)), Divergence("logits", 1.0, 0.1)]
    told = consistent(answer, results_of({name: probe}, actual), every, {where: Explanation((cause,), (fault,))})
    assert told == (every if is_true else [every[0].unexplained, every[1]])


def test_a_cause_that_only_a_dropped_cause_follows_is_dropped(probes: dict[str, Probe]) -> None:
    """Unexplained logits contradict the cause at `decoder.output`, which then cannot confirm the earlier cause."""
    name, probe = next(iter(probes.items()))
    wheres = ["decoder.layers.1.output", "decoder.output"]
    faults = [hypotheses(probe.config, [where])[0] for where in wheres]
    actual = {name: {tap: value.astype(np.float32) for tap, value in walk(probe, {}, faults).items()}}
    actual[name]["logits"] = np.sin(actual[name]["logits"])
    answer, results = answer_of({name: probe}, actual), results_of({name: probe}, actual)
    answer.found = {*wheres}
    causes = [Cause(each.fault.id, each.fault.description) for each in faults]
    every = [Divergence(where, 1.0, 0.1, (cause,)) for where, cause in zip(wheres, causes, strict=True)]
    known = {where: Explanation((cause,), (each,)) for where, cause, each in zip(wheres, causes, faults, strict=True)}
    told = consistent(answer, results, [*every, Divergence("logits", 1.0, 0.1)], known)
    assert not any(each.causes for each in told)


@pytest.mark.parametrize("is_passed", [True, False])
def test_a_false_cause_is_not_told_although_a_later_unexplained_value_hides_it(
    probes: dict[str, Probe], is_passed: bool
) -> None:
    name, probe = next(iter(probes.items()))
    layer = "decoder.layers.1"
    wrong, changed, hiding = f"{layer}.self_attention.query_rotated", f"{layer}.feed_forward.output", f"{layer}.output"
    right = walk(probe, {})
    given = {changed: np.sin(right[changed])}
    shown = {**walk(probe, given), **given}
    actual = {name: {tap: value.astype(np.float32) for tap, value in shown.items()}}
    actual[name][wrong] = actual[name][f"{layer}.self_attention.query"] * (1 if is_passed else 1.01)
    fault = next(each for each in everywhere(probe, "rotary-missing") if each.sites == (wrong,))
    cause = Cause(fault.fault.id, fault.fault.description)
    every = [Divergence(wrong, 1.0, 0.1, (cause,)), Divergence(changed, 1.0, 0.1), Divergence(hiding, 1.0, 0.1)]
    answer = answer_of({name: probe}, actual)
    answer.found = {wrong, changed, hiding}
    told = consistent(answer, results_of({name: probe}, actual), every, {wrong: Explanation((cause,), (fault,))})
    assert [each.where for each in told] == [wrong, changed][is_passed:]
    assert not any(each.causes for each in told)


def test_an_unexplained_place_that_changes_no_logit_is_told_only_alone() -> None:
    """A right port may exceed the narrow budget of a single activation."""
    changed, none = (Impact({"changed": count, "of": 9}, 0, at_padding_only=False) for count in (5, 0))
    first, quiet = (Divergence("decoder.output", 1.0, 0.1, impact=impact) for impact in (changed, none))
    caused = dataclasses.replace(quiet, causes=(Cause("norm-eps", "eps is 0"),))
    assert [*with_effect([first, quiet, caused])] == [first, caused]
    assert [*with_effect([quiet])] == [quiet]


def told_of(probes: dict[str, Probe], fault: tuple[str, str]) -> list[str]:
    """Return the sentences of the causes for a port with one fault; the port's activations were found by value."""
    actual = computed(probes, fault)
    results, answer = results_of(probes, actual), answer_of(probes, actual)
    answer.found = {tap for taps in actual.values() for tap in taps} - {"logits"}
    answer.single()
    order = next(iter(results.values())).order
    faulty = [tap for tap in order if any(tap in each.wrong for each in results.values())]
    told = explain_all(results, faulty, lambda *_: None, Clock(), answer=answer)
    return [cause.says for each in told for cause in each.causes]


def test_a_fault_between_activations_is_told_at_all_of_its_places(probes: dict[str, Probe]) -> None:
    [says] = told_of(probes, ("residual-source", "normalised"))
    assert says.endswith("at decoder.layers.0–1.self_attention.output, decoder.layers.0–1.feed_forward.output")


def test_a_fault_is_not_told_before_a_known_activation_that_is_right(probes: dict[str, Probe]) -> None:
    name, probe = next(iter(probes.items()))
    tap, *sites = [
        f"decoder.layers.{layer}.self_attention.{part}"
        for layer, part in ((1, "context"), (0, "scores"), (1, "scores"))
    ]
    fault = everywhere(probe, *WRONG[0])[0].fault
    right = walk(probe, {})
    given = {"decoder.layers.0.output": right["decoder.layers.0.output"]}
    actual = {name: given | {tap: walk(probe, given, (Hypothesis(fault, (sites[1],)),))[tap]}}
    segment = segment_of(results_of({name: probe}, actual), tap)
    told = explained_by(segment, (), [(Hypothesis(fault, (*sites,)),)], {name: probe})
    assert [each.sites for each in told.chosen] == [(sites[1],)]


def test_other_forms_of_a_fault_with_the_same_effect_are_told() -> None:
    """This GPT-NeoX rotates half of a head's features, so rotary_dim equals head_dim − rotary_dim."""
    said = told_of(first_probes("gpt-neox", 2), ("attention-scale", "1/√rotary_dim"))
    assert said and all("1/√rotary_dim" in says and "1/√(head_dim − rotary_dim)" in says for says in said)


def test_keys_alone_are_not_told_with_the_values_that_scores_do_not_show(probes: dict[str, Probe]) -> None:
    actual, tap = computed(probes, ("head-grouping", "keys tiled")), "decoder.layers.0.self_attention.scores"
    tiled = [everywhere(probes["mixed"], "head-grouping", variant)[0].fault for variant in ("keys tiled", "tiled")]
    segment = segment_of(results_of(probes, actual), tap)
    told = explained_by(segment, (), [(Hypothesis(fault, (tap,)),) for fault in tiled], probes)
    assert "or keys and values" not in told.causes[0].says


def test_a_cause_at_another_size_does_not_contradict_right_answers(probes: dict[str, Probe]) -> None:
    scale = everywhere(next(iter(probes.values())), *WRONG[0])[0]
    elsewhere = Hypothesis(scale.fault, ("decoder.layers.9.self_attention.scores",))  # only a deeper model has this tap
    assert changes_right_answers(probes, (scale,), "float32")
    assert not changes_right_answers(probes, (elsewhere,), "float32")
    assert not changes_right_answers(probes, (), "float32")


def named(report: Report) -> set[str]:
    return {cause.mistake for fault in report.faults for cause in fault.causes}


def test_what_remains_is_compared_with_rounding() -> None:
    def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(1 + 2e-5) if name.endswith("attention.scores") else value

    report = check(port(change), "notes-lm")
    assert named(report) == {"attention-scale"} and "the rest is unexplained" not in sentence(report)


def test_without_time_no_field_is_tried() -> None:
    tried = list[Hypothesis]()

    def left(hypothesis: Hypothesis) -> float:
        tried.append(hypothesis)
        return 1.0

    assert departures(CASES["llama"], left, Clock(0)) == {}
    assert len(tried) == 1


def test_one_line_with_different_faults_is_told_once_for_each_fault() -> None:
    faults = [
        Divergence(
            f"decoder.layers.{layer}.output", 1.0, 0.1, (Cause("layer-shared", f"the weights of the {name} layer"),)
        )
        for layer, name in enumerate(("last", "first"))
    ]
    line = {"file": "my.py", "line": 7, "code": "x = layer(x)", "columns": None}
    report = Report("llama", "diverges", None, tuple(dataclasses.replace(each, source=line) for each in faults))
    assert [each.places for each in findings(report)] == [[each.where] for each in faults]
