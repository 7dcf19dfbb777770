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

from meta.pool.bug import View
from meta.pool.judge import says
from meta.pool.port import pool, probes_called
from meta.pool.trials import Trial, failures, kind_of, shares
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import recording, tap_shapes
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
from transparity_conformance.suite.claims.forward import FEW
from transparity_numpy import port as numpy_column
from transparity_numpy.inputs.embedding import embed
from transparity_numpy.positions.alibi import alibi_slopes
from transparity_numpy.positions.bias import score_bias
from transparity_numpy.rotary.tables import rotary_tables
from transparity_numpy.transformer import transformer

Build = Callable[[TransformerConfig, Arrays], Any]

SLOW = ("t5", "bart", "marian")
"""Two stacks: by logits alone these take many seconds each, and `nox -s power` tries them."""


def _catalogued(config: TransformerConfig) -> set[str]:
    taps = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    return {mistake.id for tap in taps for mistake in faults_at(config, tap)}


OF_PRESETS = {name for case in PRESETS for name in _catalogued(preset(case).resized())}


def trials() -> Iterator[Trial]:
    """Every mistake that no preset has, once, every third by logits alone, every case as often as the next."""
    seen: dict[str, int] = dict.fromkeys(MODELS, 0)
    rows = {bug.causes[0]: bug for bug in pool().values() if kind_of(bug) == "fault"}
    names = [name for name in rows if name not in OF_PRESETS]
    for number, name in enumerate(names):
        view: View = "logits" if number % 3 == 2 else "taps"
        cases = [
            case for case in MODELS if rows[name].runs_in(MODELS[case]) and not (view == "logits" and case in SLOW)
        ]
        possible = (Trial("fault", case, (rows[name],), view) for case in sorted(cases, key=lambda case: seen[case]))
        if trial := next((each for each in possible if each.acts()), None):
            seen[trial.case] += 1
            yield trial


@pytest.mark.long
def test_mistakes_of_families_are_detected_placed_and_named(pytestconfig: pytest.Config) -> None:
    """Every fourth trial; all with --every-case."""
    every = 1 if pytestconfig.getoption("--every-case") else 4
    answers = [(trial, trial.run()) for trial in list(trials())[::every]]
    missed = [f"{trial} → {says(answer)}" for trial, answer in answers if failures(trial, answer)]
    assert [str(share) for share in shares(answers) if not share.is_reached] == [], missed


@pytest.mark.parametrize(
    ("case", "ids", "view"),
    [
        ("bloom", ("alibi-sign", "activation-for-gelu-tanh"), "taps"),
        ("opt", ("position-offset-missing", "bias-dropped-down"), "logits"),
        ("bloom", ("slopes-squared",), "taps"),
        ("opt", ("head-silent",), "logits"),
        ("bloom", ("activation-sigmoid", "attention-scale-number"), "logits"),
        ("llama", ("rotary-base-77", "norm-eps-rms-3e-6"), "logits"),
    ],
    ids=str,
)
def test_two_mistakes_are_told_apart_and_an_unknown_one_has_no_name(
    case: str, ids: tuple[str, ...], view: View
) -> None:
    """One of the two, or both, may have a number in them."""
    bugs = tuple(pool()[id] for id in ids)
    trial = Trial("pair" if len(bugs) == 2 else "uncatalogued", case, bugs, view)
    answer = trial.run()
    assert answer["verdict"] == "diverges" and not failures(trial, answer), answer["faults"]


def _column(config: TransformerConfig, parameters: Arrays) -> Callable[..., Arrays]:
    """The NumPy column in float32, with its taps."""
    cast = {name: value.astype(np.float32) for name, value in parameters.items()}

    def forward(**inputs: Any) -> Arrays:
        taps: Arrays = {}
        transformer(config, cast, **inputs, tap=recording(taps))
        return taps

    return forward


def _agrees(build: Build, case: str, *, logits_only: bool) -> None:
    said = {}
    for name, probe in probes_called(case).items():
        heard = build(probe.config, probe.parameters)(**probe.inputs)
        said[name] = {tap: np.asarray(value) for tap, value in heard.items()}
    report = judge(case, probes_called(case), said, logits_only=logits_only)
    assert report.verdict == "agrees", report.as_dict()["faults"]
    assert not report.faults and not report.notes


def _pytorch(config: TransformerConfig, parameters: Arrays) -> Any:
    column = pytest.importorskip("transparity_pytorch.port")
    return column.build(config, parameters, dtype="float32", mode="eager")


@pytest.mark.parametrize("case", CASES)
def test_a_right_port_agrees(case: str) -> None:
    _agrees(_column, case, logits_only=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("build", [_column, _pytorch], ids=["numpy", "pytorch"])
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
    ("case", "fields", "change"),
    [
        ("qwen", {"rope_layout": "interleaved"}, _permuted),
        ("bloom", {}, None),
    ],
)
def test_another_form_of_the_same_is_right(
    case: str, fields: dict[str, Any], change: Callable[..., Arrays] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features that turn together are neighbours; ALiBi is slopes times the key's position, as BLOOM has it."""
    probes = probes_called(case)
    config = dataclasses.replace(MODELS[case], **fields)
    with monkeypatch.context() as patched:
        if change is None:
            patched.setattr("transparity_numpy.transformer.score_bias", _of_key_positions(config))
        said = {
            name: _column(
                dataclasses.replace(probe.config, **fields),
                change(probe.config, dict(probe.parameters)) if change else probe.parameters,
            )(**probe.inputs)
            for name, probe in probes.items()
        }
    report = judge(case, probes, said)
    assert report.verdict == "agrees"
    assert all("in another form" in note for note in report.notes) and report.notes


@pytest.mark.parametrize(
    ("case", "id"),
    [
        ("whisper", "convolution-stride-exchanged"),
        ("opt", "residual-source-parallel"),
        ("llama", "packed-order-read-by-head"),
        ("llama", "packed-order-laid-by-head"),
    ],
)
def test_a_variant_for_these_families_is_named(case: str, id: str) -> None:
    answer = Trial("fault", case, (pool()[id],), "taps").run()
    assert {cause["mistake"] for fault in answer["faults"] for cause in fault["causes"]} == set(pool()[id].causes)
    assert all(fault["causes"] for fault in answer["faults"])


@pytest.mark.parametrize("case", CASES)
def test_every_mistake_can_be_put_into_the_reference(case: str) -> None:
    config, probe = CASES[case], probes_called(case)["square"]
    taps = list(tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1)))
    for hypothesis in widest([*hypotheses(config, taps), *whole_model(config)]):
        with np.errstate(all="ignore"):
            logits = walk(probe, {}, (hypothesis,))["logits"]
        assert logits.dtype == np.float64
        assert logits.shape == probe.oracle.expected["logits"].shape, str(hypothesis)


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
            patch("transparity_numpy.transformer.embed", begins_again(embed, 4)),
        ):
            return super().step(*given, **named)


@pytest.mark.parametrize("case", ["llama", "bloom", "opt", "t5", "marian"])
def test_a_wrong_position_in_a_cache_is_named_whatever_positions_are(case: str) -> None:
    probe = probes_called(case)["mixed"]
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
    probe = dataclasses.replace(probes_called(case)["mixed"], config=dataclasses.replace(CASES[case], eos_id=2))
    never, ending = (_ends(request) for request in greedy_requests(probe).first)
    assert never == [] and len(set(ending)) > 1
    assert beam_requests(probe).first[0].config.eos_id is not None


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
