"""The parts that no preset has: right ports agree, and each mistake in them is found, placed and named; on a sample.

`nox -s power` tries everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from meta.power.family_faults import FAULTS, acting
from meta.power.family_port import FamilyFault, build_port
from meta.power.judgement import (
    MEASURES,
    Judgement,
    Measure,
    is_detected,
    is_named,
    is_placed,
    judged,
    one_named,
    wrong,
)
from meta.power.simulated import SimulatedPort, case_probes, family_ports, further_family_ports
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import tap_shapes
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.compare import compare_capability
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.requests import Request, beam_requests, greedy_requests
from transparity_conformance.catalogue import faults_at, hypotheses, whole_model, widest
from transparity_conformance.checking.check import check
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.report import Cause, Divergence, Report
from transparity_conformance.suite.claims.families import FEW
from transparity_numpy import port as numpy_column
from transparity_numpy.embeddings import embed
from transparity_numpy.positions import alibi_slopes, rotary_tables, score_bias

Build = Callable[[TransformerConfig, Arrays], Any]

SLOW = ("t5", "bart", "marian")
"""Two stacks: by logits alone these take many seconds each, and `nox -s power` tries them."""


QUICK = ("taps", "logits")
"""Views that are tried here; `tests/alignment` and `nox -s power` listen to operations, too."""


def _catalogued(config: TransformerConfig) -> set[str]:
    taps = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    return {mistake.id for tap in taps for mistake in faults_at(config, tap)}


OF_PRESETS = {name for case in PRESETS for name in _catalogued(preset(case).resized())}
"""Cases of `test_power`."""


def sampled() -> Iterator[SimulatedPort]:
    """Every mistake that no preset has, once, every third by logits alone, every case as often as the next."""
    seen: dict[str, int] = dict.fromkeys(MODELS, 0)
    names = dict.fromkeys(fault.ids[0] for fault in FAULTS if fault.ids[0] not in OF_PRESETS)
    for number, name in enumerate(names):
        alone = number % 3 == 2
        possible = [
            t for t in family_ports() if t.faults[0].ids[0] == name and t.view == ("logits" if alone else "taps")
        ]
        quick = [trial for trial in possible if not (alone and trial.case in SLOW)]
        chosen = min(quick or [dataclasses.replace(possible[0], view="taps")], key=lambda t: seen[t.case])
        seen[chosen.case] += 1
        yield chosen


@pytest.fixture(scope="module")
def answers(pytestconfig: pytest.Config) -> list[Judgement]:
    """Every fourth trial; all with --every-case."""
    every = 1 if pytestconfig.getoption("--every-case") else 4
    return [judged(trial) for trial in list(sampled())[::every]]


@pytest.mark.long
@pytest.mark.parametrize(
    "measure", [each for each in MEASURES if each.kind == "fault" and each.view in QUICK], ids=lambda each: each.title
)
def test_the_checker_reaches_its_targets(answers: list[Judgement], measure: Measure) -> None:
    counted = sum(measure.counts(answer.port) for answer in answers)
    failures = wrong(measure, answers)
    assert counted >= 3
    assert 1 - len(failures) / counted >= measure.target, [f"{each.port} → {each}" for each in failures]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "trial", [each for each in further_family_ports(("bloom", "opt"), {2: 3}) if each.view in QUICK], ids=str
)
def test_two_mistakes_are_told_apart_and_an_unknown_one_has_no_name(trial: SimulatedPort) -> None:
    answer = judged(trial)
    assert not [measure.title for measure in MEASURES if wrong(measure, [answer])], answer


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "made",
    [("activation (sigmoid)", "attention-scale (1.37 times)"), ("rotary-base (77)", "norm-eps (3e-6)")],
    ids=" and ".join,
)
def test_one_of_two_mistakes_or_both_may_have_a_number_in_them(made: tuple[str, str]) -> None:
    case = next(case for case in ("bloom", "llama") if set(made) <= set(map(str, acting(case))))
    one, other = (next(fault for fault in acting(case) if str(fault) == name) for name in made)
    answer = judged(SimulatedPort("pair", case, (one, other), view="logits"))
    assert one_named(answer), answer
    assert len(answer.divergences[0].causes) == 2


def _agrees(build: Build, case: str, *, logits_only: bool) -> None:
    said = {}
    for name, probe in case_probes(case).items():
        heard = build(probe.config, probe.parameters)(**probe.inputs)
        said[name] = {tap: np.asarray(value) for tap, value in heard.items()}
    report = judge(case, case_probes(case), said, logits_only=logits_only)
    assert report.verdict == "agrees", report.as_dict()["faults"]
    assert not report.faults and not report.notes


def _pytorch(config: TransformerConfig, parameters: Arrays) -> Any:
    column = pytest.importorskip("transparity_pytorch.port")
    return column.build(config, parameters, dtype="float32", mode="eager")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
def test_a_right_port_agrees(case: str) -> None:
    _agrees(build_port(None), case, logits_only=False)


@pytest.mark.slow
@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("build", [build_port(None), _pytorch], ids=["numpy", "pytorch"])
def test_a_right_port_agrees_however_it_is_looked_at(case: str, build: Build) -> None:
    _agrees(build, case, logits_only=True)
    _agrees(build, case, logits_only=False)


def _permuted(config: TransformerConfig, parameters: Arrays) -> Arrays:
    """Queries and keys whose features that turn together are neighbours, not half of all apart."""
    order = np.arange(config.head_dim).reshape(2, -1).T.ravel()
    turned = {name: value for name, value in parameters.items() if ".query" in name or ".key" in name}
    by_head = {name: value.reshape(-1, config.head_dim, *value.shape[1:])[:, order] for name, value in turned.items()}
    return parameters | {name: value.reshape(parameters[name].shape) for name, value in by_head.items()}


def _of_key_positions(config: TransformerConfig) -> Callable[..., Any]:
    """ALiBi as BLOOM has it: slopes times the key's position."""

    def score_bias(config: Any, parameters: Any, positions: Any, keys: int, dtype: Any, *, both: bool) -> Any:
        at = np.arange(keys)
        return (alibi_slopes(config.num_heads)[None, :, None, None] * at).astype(dtype)

    return score_bias


@pytest.mark.parametrize(
    ("case", "form"),
    [
        ("qwen", FamilyFault((), "permuted", "", bool, lambda config: {"rope_layout": "interleaved"}, _permuted)),
        ("bloom", FamilyFault((), "key positions", "", bool, exchanged={"transformer.score_bias": _of_key_positions})),
    ],
)
def test_another_form_of_the_same_is_right(case: str, form: FamilyFault) -> None:
    probes = case_probes(case)
    said = {name: build_port(form)(probe.config, probe.parameters)(**probe.inputs) for name, probe in probes.items()}
    report = judge(case, probes, said)
    assert report.verdict == "agrees"
    assert all("in another form" in note for note in report.notes) and report.notes


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "variant"),
    [
        ("whisper", "convolution-stride (exchanged)"),
        ("opt", "parallel"),
        ("llama", "read by head"),
        ("llama", "laid by head"),
    ],
)
def test_a_variant_for_these_families_is_named(case: str, variant: str) -> None:
    fault = next(each for each in FAULTS if variant in (each.variant, str(each)))
    probes = case_probes(case)
    said = {name: build_port(fault)(probe.config, probe.parameters)(**probe.inputs) for name, probe in probes.items()}
    report = judge(case, probes, said)
    assert {cause.mistake for found in report.faults for cause in found.causes} == set(fault.ids)
    assert all(found.causes for found in report.faults)


def test_every_mistake_acts_in_some_case() -> None:
    assert {str(fault) for fault in FAULTS} == {str(fault) for case in MODELS for fault in acting(case)}


def test_every_mistake_of_the_catalogue_is_made_by_some_port() -> None:
    of_cases = {name for config in MODELS.values() for name in _catalogued(config)}
    assert of_cases - OF_PRESETS == {name for fault in FAULTS for name in fault.ids} - OF_PRESETS


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", CASES)
def test_every_mistake_can_be_put_into_the_reference(case: str) -> None:
    config, probe = CASES[case], case_probes(case)["square"]
    taps = list(tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1)))
    for hypothesis in widest([*hypotheses(config, taps), *whole_model(config)]):
        with np.errstate(all="ignore"):
            logits = walk(probe, {}, (hypothesis,))["logits"]
        assert logits.dtype == np.float64
        assert logits.shape == probe.oracle.expected["logits"].shape, str(hypothesis)


def _answer(where: str, cause: str, *, case: str = "qwen", fault: str = "rotary-layout") -> Judgement:
    trial = next(t for t in family_ports((case,)) if t.faults[0].ids[0] == fault and t.view == "taps")
    causes = (Cause(cause, "", None, 0.0, 1.0),) if cause else ()
    return Judgement(trial, Report(case, "diverges", where, (Divergence(where, 1.0, 0.1, causes),)), 0.0)


def test_a_wrong_place_and_a_wrong_name_are_wrong() -> None:
    turned, scores = (f"decoder.layers.0.self_attention.{tap}" for tap in ("query_rotated", "scores"))
    right = _answer(turned, "rotary-layout")
    assert is_detected(right) and is_placed(right) and is_named(right)
    assert not is_placed(_answer(scores, "rotary-layout"))
    assert not is_named(_answer(turned, "rotary-base"))
    assert not is_named(_answer(turned, ""))
    crashed = dataclasses.replace(right, report=None)
    assert not (is_detected(crashed) or is_placed(crashed) or is_named(crashed))


class BeginsAgain(numpy_column.NumpyForward):
    """A port whose tokens stand at 0, 1 … in every step with a cache, whatever is in it."""

    def step(self, *given: Any, **named: Any) -> tuple[Any, Any]:
        def begins_again(right: Any, place: int) -> Any:
            """`right` with the positions in its argument at `place` beginning at 0."""

            def wrong(*given: Any, **named: Any) -> Any:
                at = given[place]
                return right(*given[:place], at - at[:, :1], *given[place + 1 :], **named)

            return wrong

        with (
            patch("transparity_numpy.transformer.rotary_tables", begins_again(rotary_tables, 1)),
            patch("transparity_numpy.transformer.score_bias", begins_again(score_bias, 2)),
            patch("transparity_numpy.transformer.embed", begins_again(embed, 3)),
        ):
            return super().step(*given, **named)


@pytest.mark.parametrize("case", ["llama", "bloom", "opt", "t5", "marian"])
def test_a_wrong_position_in_a_cache_is_named_whatever_positions_are(case: str) -> None:
    probe = case_probes(case)["mixed"]
    right, again = (
        build(probe.config, probe.parameters, "float32") for build in (numpy_column.NumpyForward, BeginsAgain)
    )
    whole = ForwardPass({probe.name: probe}, {}, "float32")
    assert not compare_capability(STEPS, BuiltPort(numpy_column.build, right), whole).faults
    (fault,) = compare_capability(STEPS, BuiltPort(numpy_column.build, again), whole).faults
    assert [cause.mistake for cause in fault.causes] == ["cache-position"]
    assert "begin at 0 again" in fault.causes[0].says


@pytest.mark.parametrize("case", ["llama", "gemma", "bart"])
def test_rows_end_apart_though_no_bias_can_make_them(case: str) -> None:
    probe = dataclasses.replace(case_probes(case)["mixed"], config=dataclasses.replace(CASES[case], eos_id=2))
    never, ending = (_ends(request) for request in greedy_requests(probe))
    assert never == [] and len(set(ending)) > 1
    assert beam_requests(probe)[0].config.eos_id is not None


def _ends(request: Request) -> list[int]:
    """At which step each row that ends does."""
    config, begin = request.config, request.prompt.shape[1]
    forward = numpy_column.NumpyForward(config, request.parameters, "float64")
    said = forward.generate(request.prompt, request.steps, source=request.source)[:, begin:]
    return [int(np.argmax(row == config.eos_id)) for row in said if (row == config.eos_id).any()]


@pytest.mark.long
@pytest.mark.slow
def test_what_a_port_of_a_family_offers_is_compared() -> None:
    config = dataclasses.replace(CASES["gemma"], eos_id=2)
    report = check(lambda config, parameters: numpy_column.build(config, parameters, dtype="float32"), config=config)
    assert report.verdict == "agrees"
    assert {"step", "generate", "beam_search"} <= {claim.id for claim in report.claims}


def test_what_is_compiled_has_all_parts_that_no_preset_has() -> None:
    sizes = {"max_length", "embed_dim", "num_heads", "feed_forward_dim", "source_vocab_size", "target_vocab_size"}
    sizes |= {"norm_eps", "pad_id", "bos_id", "eos_id", "architecture"}
    for field in {field.name for field in dataclasses.fields(TransformerConfig)} - sizes:
        of_presets = {getattr(preset(name), field) for name in PRESETS}
        tried = of_presets | {getattr(MODELS[case], field) for case in FEW}
        assert {getattr(config, field) for config in MODELS.values()} <= tried, field


def test_every_simulated_fault_of_a_family_can_be_made() -> None:
    """A function that is replaced has to exist: power would stop where it does not."""
    for case in MODELS:
        probe = next(iter(case_probes(case).values()))
        for fault in acting(case):
            assert "logits" in build_port(fault)(probe.config, probe.parameters)(**probe.inputs), str(fault)
