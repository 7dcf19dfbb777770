"""The checker reaches its measures, on a sample; and what measures it is right itself.

`nox -s power` tries everything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from meta.power import family_faults, family_port
from meta.power.judgement import (
    MEASURES,
    Judgement,
    Measure,
    is_named,
    is_placed,
    judged,
    one_named,
    scores,
)
from meta.power.plain_faults import acting, probes_for, styles
from meta.power.plain_port import PlainFault, Style, build_port
from meta.power.simulated import (
    CASES,
    Build,
    Fault,
    SimulatedPort,
    case_probes,
    not_acting,
    plain_ports,
    sampled,
)
from transparity.config import TransformerConfig
from transparity.taps import tap_shapes
from transparity_conformance.oracle.budgets import neighbours_of_drawn
from transparity_conformance.oracle.cases import MODELS as FAMILIES
from transparity_conformance.oracle.oracle import Arrays, forward_oracle
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.strategies import models
from transparity_conformance.oracle.undetermined import judged as where_no_convention_decides
from transparity_conformance.report.comparison import difference
from transparity_conformance.report.report import Cause, Divergence, Report

SAMPLE = 1
"""Trials of each measure."""

FEW = ("pre-norm", "batch-norm")
"""Configurations whose ports are tried: most faults, and those of batch statistics."""


@pytest.mark.parametrize("case", CASES)
def test_the_port_without_a_mistake_is_right_at_every_tap(case: str) -> None:
    for probe in probes_for(CASES[case]).values():
        heard = build_port()(probe.config, probe.parameters)(**probe.inputs)
        assert set(heard) == set(probe.oracle.expected)
        for name, expected in probe.oracle.expected.items():
            assert difference(heard[name], expected) <= probe.oracle.budget(name, "float32"), (probe.name, name)


USUAL = {
    "activation": "relu",
    "norm": "layer",
    "norm_position": "pre",
    "attention_scale": "head_dim",
    "positions": "learned",
}
"""Defaults for choices that no document makes."""

DOCUMENTED = {"layer", "layer-unbiased", "batch", "pre", "post", "head_dim", "embed_dim", "learned", "sinusoidal"}

PLAIN = {
    *("architecture", "source_vocab_size", "target_vocab_size", "max_length", "embed_dim", "num_heads"),
    *("num_encoder_layers", "num_decoder_layers", "feed_forward_dim", "norm_eps", "norm_momentum", "final_norm"),
    *("memory_norm", "projection", "qkv_bias", "output_bias", "mask_value", "mask_order", "target_mask"),
    *("embedding_scale", "dropout", "dropout_at", "pad_id", "bos_id", "eos_id"),
}
"""The fields in which the documents differ; the plain port has no others."""


def of_the_documents(config: TransformerConfig) -> TransformerConfig:
    """The same configuration with nothing that no document has."""
    fields = {name: value for name, value in dataclasses.asdict(config).items() if name in PLAIN}
    for name, usual in USUAL.items():
        value = getattr(config, name)
        fields[name] = value if value in DOCUMENTED else usual
    return TransformerConfig(**fields)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_the_port_serves_every_configuration(model: tuple[TransformerConfig, int, Arrays]) -> None:
    drawn, seed, inputs = model
    config = of_the_documents(drawn)
    inputs = {name: inputs[name] for name in config.input_names}
    parameters = probe_parameters(config, seed)
    oracle = forward_oracle(config, parameters, inputs, neighbours=neighbours_of_drawn(inputs))
    heard = build_port()(config, parameters)(**inputs)
    assert list(heard) != [] and set(heard) == set(oracle.expected)
    for name, expected in oracle.expected.items():
        assert difference(heard[name], expected) <= oracle.budget(name, "float32"), name


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", CASES)
def test_every_style_is_right(case: str) -> None:
    """By the oracle's budget, not by the checker: else an alarm might not be a false one."""
    for style in styles(CASES[case], seeds=2):
        dtype = "bfloat16" if style.kind == "bfloat16" else "float32"
        for probe in probes_for(CASES[case]).values():
            logits = build_port(style=style)(probe.config, probe.parameters)(**probe.inputs)["logits"]
            expected = probe.oracle.expected["logits"]
            error = difference(where_no_convention_decides(probe, "logits", logits, expected), expected)
            assert error <= probe.oracle.budget("logits", dtype), (str(style), probe.name)


@pytest.mark.long
def test_every_mistake_acts_in_some_configuration() -> None:
    assert not_acting() == set(), "conformance/meta/power/plain_port.py does not make these faults anywhere"


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", FAMILIES)
def test_every_mistake_of_a_family_changes_its_logits(case: str) -> None:
    """By the oracle's budget on some probe: else it is a right port, on which the checker rightly agrees."""
    inert = []
    for mistake in family_faults.acting(case):
        differs = (_differs(probe, family_port.build_port(mistake, "float64")) for probe in case_probes(case).values())
        if not any(differs):
            inert.append(str(mistake))
    assert inert == []


def _differs(probe: Probe, build: Build) -> bool:
    with np.errstate(all="ignore"):
        logits = build(probe.config, probe.parameters)(**probe.inputs)["logits"]
    expected = probe.oracle.expected["logits"]
    return logits.shape != expected.shape or difference(logits, expected) > probe.oracle.budget("logits", "float32")


@pytest.mark.long
def test_every_mistake_acts_in_some_family() -> None:
    made = {mistake for case in FAMILIES for mistake in map(str, family_faults.acting(case))}
    assert [str(mistake) for mistake in family_faults.FAULTS if str(mistake) not in made] == []


@pytest.mark.long
def test_there_are_as_many_trials_as_promised() -> None:
    of_measure = [trial.kind for trial in plain_ports()]
    assert of_measure.count("pair") == 3 * 120
    assert of_measure.count("triple") == 3 * 30
    assert sum(len(styles(config)) for config in CASES.values()) >= 300
    assert {measure.kind for measure in MEASURES} == set(of_measure)


def test_a_tap_is_no_other_dtype_than_declared() -> None:
    probe = probes_for(CASES["translation"])["mixed"]
    for style in (Style(), Style("float64"), Style("permuted sums", 1)):
        heard = build_port(style=style)(probe.config, probe.parameters)(**probe.inputs)
        assert {np.asarray(value).dtype for value in heard.values()} == {np.dtype("float32")}


@pytest.mark.long
def test_a_sample_tries_as_many_mistakes_as_it_can() -> None:
    trials = [trial for trial in plain_ports(FEW) if (trial.case, trial.kind) == ("pre-norm", "fault")]
    chosen = sampled(trials, 20)
    assert len(chosen) == 60
    assert len({trial.faults[0].ids[0] for trial in chosen if trial.view == "logits"}) == 20


SCALE, BIAS = PlainFault("attention-scale", "none"), PlainFault("bias-dropped", "up", "decoder.layers.1")


def answer(*places: tuple[str, str], made: tuple[Fault, ...] = (SCALE,), tied: tuple[str, ...] = ()) -> Judgement:
    """A judgement with divergences, each a place and the cause named first (or none), and what is tied with it."""
    divergences = tuple(
        Divergence(where, 1.0, 0.1, (Cause(name, name, None, 0.0, 1.0),) if name else (), tied)
        for where, name in places
    )
    port = SimulatedPort(
        "fault" if len(made) == 1 else "pair", "translation", made, view="logits" if len(made) > 1 else "taps"
    )
    return Judgement(port, Report("translation", "diverges", "", divergences), 1.0)


def test_a_wrong_place_and_a_wrong_name_are_wrong() -> None:
    scores_tap, output = "encoder.layers.0.self_attention.scores", "encoder.layers.0.output"
    right = answer((scores_tap, "attention-scale"))
    assert is_placed(right) and is_named(right)
    assert not is_placed(answer((scores_tap, "attention-scale"), (output, "")))
    assert not is_placed(answer())
    assert not is_named(answer((scores_tap, "weight-transpose")))
    assert not is_named(answer((scores_tap, "")))
    assert is_named(answer((scores_tap, "weight-transpose"), tied=("attention-scale",)))


def test_one_of_two_mistakes_is_named_only_if_the_other_is_not_denied() -> None:
    pair = (SCALE, BIAS)
    assert one_named(answer(("logits", "attention-scale"), ("logits", "bias-dropped"), made=pair))
    assert one_named(answer(("logits", "attention-scale"), ("logits", ""), made=pair))
    assert not one_named(answer(("logits", "attention-scale"), made=pair))
    assert not one_named(answer(("logits", ""), made=pair))


def test_a_scaled_input_of_batch_norm_is_named() -> None:
    fault = PlainFault("norm-input-scale", "2")
    found = judged(SimulatedPort("fault", "batch-norm", (fault,), view="logits"))
    assert is_named(found), str(found)


@pytest.mark.long
def test_a_checker_that_always_agrees_reaches_no_target_but_one() -> None:
    trials = sampled([trial for trial in plain_ports(FEW) if trial.case == "pre-norm"], 5)
    found = scores([Judgement(trial, Report(trial.case, "agrees", None), 0.0) for trial in trials])
    assert [score["measure"] for score in found if score["reached"]] == ["no false alarm"]


def test_every_tap_has_a_mistake_that_shows_there() -> None:
    config = CASES["pre-norm"]
    shown = {
        name
        for name in tap_shapes(config, 1, source=1, target=1)
        for fault in acting(config)
        if fault.id != "low-precision" and is_placed(answer((name, ""), made=(fault,)))
    }
    assert {
        "decoder.layers.1.cross_attention.weights",
        "decoder.embedding",
        "logits",
        "encoder.layers.0.output",
    } <= shown


def assert_reached(measure: Measure, ports: Sequence[SimulatedPort]) -> None:
    trials = [trial for trial in sampled(ports, SAMPLE, seed=1) if measure.counts(trial)]
    (score,) = (score for score in scores([judged(trial) for trial in trials]) if score["measure"] == measure.title)
    assert score["reached"], score["failures"]


def title(measure: Measure) -> str:
    return measure.title.replace(" ", "-")


@pytest.mark.sampled(5)
@pytest.mark.slow
@pytest.mark.parametrize("measure", MEASURES[::4], ids=title)
def test_the_checker_reaches_some_targets(measure: Measure) -> None:
    assert_reached(measure, plain_ports(FEW))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("measure", MEASURES, ids=title)
def test_the_checker_reaches_its_targets(measure: Measure) -> None:
    assert_reached(measure, plain_ports())
