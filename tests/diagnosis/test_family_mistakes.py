"""Test ports of models with parts that no preset has. These tests check a sample of mistakes; `nox -s power` checks all
mistakes."""

import dataclasses

import numpy as np
import pytest

from meta.pool.bug import View
from meta.pool.port import pool, port_with, probes_called
from meta.pool.trials import Trial, failures
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.requests import Request, requests_of
from transparity_conformance.capabilities.table import compare_capability
from transparity_conformance.oracle.cases import CASES, MODELS
from transparity_conformance.report.report import Divergence
from transparity_conformance.suite.claims.forward import FEW
from transparity_numpy import port as numpy_column

PAIRS: list[tuple[str, tuple[str, ...], View]] = [
    ("bloom", ("alibi-sign", "activation-for-gelu-tanh"), "taps"),
    ("opt", ("position-offset-counted", "bias-dropped-down"), "logits"),
    ("bloom", ("slopes-squared",), "taps"),
    ("opt", ("head-silent",), "logits"),
    ("bloom", ("activation-sigmoid", "attention-scale-number"), "logits"),
    ("llama", ("rotary-base-77", "norm-eps-rms-3e-6"), "logits"),
    ("last-token", ("attention-cap-unwanted", "rotary-layout-the-other"), "logits"),
    ("opt", ("position-offset-counted", "bias-dropped-down", "activation-for-relu"), "logits"),
]
"""A model, the faults of its port, and what the checker sees of the port. The ports with one fault have a fault that
the catalogue lacks."""

KINDS = {1: "uncatalogued", 2: "pair", 3: "triple"}


@pytest.mark.parametrize(
    "trial", [Trial(KINDS[len(ids)], case, tuple(pool()[id] for id in ids), view) for case, ids, view in PAIRS], ids=str
)
def test_faults_are_told_apart_and_an_unknown_one_has_no_name(trial: Trial) -> None:
    answer = trial.run()
    assert answer["verdict"] == "diverges" and not failures(trial, answer), answer["faults"]
    named = {cause["mistake"] for fault in answer["faults"] for cause in fault["causes"]}
    assert trial.kind != "triple" or all(named & {*bug.causes} for bug in trial.bugs), answer["faults"]


@pytest.mark.parametrize("case", ["llama", "bloom", "opt", "t5", "translation"])
def test_a_wrong_position_in_a_cache_is_named_whatever_positions_are(case: str) -> None:
    probe = probes_called(case)["mixed"]
    whole = ForwardPass({probe.name: probe}, {}, "float32")

    def faults(*bugs: str) -> tuple[Divergence, ...]:
        build = port_with(*bugs, taps=False, offers="step")
        return compare_capability(STEPS, BuiltPort(build, build(probe.config, probe.parameters)), whole).faults

    assert not faults()
    (fault,) = faults("cache-position-from-0")
    assert [cause.mistake for cause in fault.causes] == ["cache-position"]
    assert "start at 0 again" in fault.causes[0].says


@pytest.mark.parametrize("case", ["llama", "gemma", "bart"])
def test_rows_end_apart_though_no_bias_can_make_them(case: str) -> None:
    probe = dataclasses.replace(probes_called(case)["mixed"], config=dataclasses.replace(CASES[case], eos_id=2))
    never, ending = (_ends(request) for request in requests_of(probe)["generate"].first)
    assert never == [] and len(set(ending)) > 1
    assert requests_of(probe)["beam_search"].first[0].config.eos_id is not None


def _ends(request: Request) -> list[int]:
    config, begin = request.config, request.prompt.shape[1]
    forward = numpy_column.NumpyForward(config, request.parameters, "float64")
    said = forward.generate(request.prompt, request.steps, source=request.source)[:, begin:]
    return [int(np.argmax(row == config.eos_id)) for row in said if (row == config.eos_id).any()]


def test_what_is_compiled_has_all_parts_that_no_preset_has() -> None:
    sizes = {"max_length", "embed_dim", "num_heads", "feed_forward_dim", "source_vocab_size", "target_vocab_size"}
    sizes |= {"norm_eps", "pad_id", "bos_id", "eos_id", "architecture"}
    for field in {field.name for field in dataclasses.fields(TransformerConfig)} - sizes:
        of_presets = {getattr(preset(name), field) for name in PRESETS}
        tried = of_presets | {getattr(MODELS[case], field) for case in FEW}
        assert {getattr(config, field) for config in MODELS.values()} <= tried, field
