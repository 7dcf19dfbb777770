import dataclasses
import functools
import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from tests.golden.ports import GPT2, Arrays, ReluOfOneRow, ScaledByTheWidth, Showing, WrongFromSixtyFive
from tests.helpers import run_python
from torch import Tensor

import transparity_conformance
from meta.independent.model import Model
from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance import assert_conforms, check
from transparity_conformance.checking import check as testing
from transparity_conformance.identify.alignment.known_faults import Recorded, intermediates
from transparity_conformance.oracle import probes
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.check.view import MARKS
from transparity_conformance.report.report import Report, Verdict
from transparity_numpy.port import build
from transparity_pytorch.port import build as pytorch_build


def test_a_large_model_is_listened_to_on_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LARGE", 0)
    report = check(ScaledByTheWidth, config=GPT2)
    assert report.faults[0].causes[0].mistake == "attention-scale"
    taps = {item.tap for item in report.measured if item.probe == "aligned"}
    assert len(taps) > 20 and {item.tap for item in report.measured if item.probe == "mixed"} == {"logits"}


def test_a_wrong_answer_is_told_before_the_next_call() -> None:
    """Expect that each port is judged after its first answer, and that only a wrong answer is reported."""
    events: list[str] = []

    def built(name: str) -> Any:
        def build(config: TransformerConfig, parameters: Arrays) -> Any:
            forward = port_with(name)(config, parameters) if name else pytorch_build(config, parameters)

            def call(**tokens: np.ndarray) -> Any:
                events.append("call")
                return forward(**tokens)

            return call

        return build

    check(built("attention-scale-none"), "notes-lm", budget=0, quick=True, located=lambda report: events.append("told"))
    assert events[:2] == ["call", "told"]
    events.clear()
    check(built(""), "notes-lm", quick=True, located=lambda report: events.append("told"))
    assert set(events) == {"call"}


def causes(report: Report) -> list[str]:
    return [cause.mistake for fault in report.faults[:1] for cause in fault.causes]


@pytest.mark.long
def test_a_tap_that_the_port_shows_is_compared_and_contradicts_a_cause() -> None:
    """The port doubles a tap only in its answer, and has a wrong scale, which explains the logits, but not the tap."""
    report = check(Showing, config=GPT2)
    assert {item.tap for item in report.measured} == set(probes.probes_of(GPT2, "gpt2")["mixed"].oracle.expected)
    (scores,) = report.faults
    assert (scores.where, scores.causes) == ("decoder.layers.0.self_attention.scores", ())
    assert scores.source is not None and "scores = self.capped(query @ key" in scores.source["code"]


@pytest.mark.parametrize(
    ("build", "cause", "begins", "boundary"),
    [
        (ReluOfOneRow, "activation", "return F.gelu(x)", "batch 1"),
        (WrongFromSixtyFive, "attention-scale", "return query @", "right up to length 64, wrong from length 65 on"),
    ],
)
def test_a_fault_that_shows_at_other_sizes_alone_has_its_cause_and_line(
    build: type[Model], cause: str, begins: str, boundary: str
) -> None:
    told: list[Report] = []
    report = check(build, config=dataclasses.replace(GPT2, max_length=300), located=told.append)
    assert report.faults[0].source is not None, report.notes
    assert causes(report) == [cause] and report.faults[0].source["code"].startswith(begins)
    assert any(boundary in note for note in report.notes)
    assert told[0].faults[0].where == "logits" and told[-1].faults[0].source is not None


class PadsKeysFromSixtyFive(Model):
    """A GPT-2 that adds a visible key of zeros to long texts. This key acts like a sink, but the model has no sinks."""

    def weigh(self, at: str, query: Tensor, key: Tensor, value: Tensor, keep: Tensor, bias: Any) -> Tensor:
        more = int(key.shape[2] > 64)
        key, value = (F.pad(each, (0, 0, 0, more)) for each in (key, value))
        return super().weigh(at, query, key, value, F.pad(keep, (0, more), value=True), bias)


def test_a_cause_that_is_wrong_at_other_sizes_is_told_only_if_all_its_sublayer_is_seen() -> None:
    report = check(PadsKeysFromSixtyFive, config=dataclasses.replace(GPT2, max_length=300))
    assert report.faults[0].source is not None and not causes(report), report
    assert any("right up to length 64, wrong from length 65 on" in note for note in report.notes)


@pytest.mark.parametrize(
    ("variant", "says", "declared"),
    [
        ("float16-weights", "rounding of float16 weights", "--dtype float16"),
        ("bfloat16-arithmetic", "rounding of bfloat16 arithmetic", "--dtype bfloat16"),
        ("bfloat16-autocast", "rounding of bfloat16 arithmetic", "--dtype bfloat16"),
        ("tf32-products", "rounding of the factors of matrix products to TF32", "allow_tf32 = False"),
    ],
)
def test_undeclared_rounding_diverges_and_is_named(variant: str, says: str, declared: str) -> None:
    report = check(port_with(f"low-precision-{variant}"), preset="notes-lm", logits_only=True)
    assert (report.verdict, report.exit_code) == ("diverges", 1)
    assert [[cause.says for cause in fault.causes] for fault in report.faults] == [[says]]
    assert any("rounds more than float32" in note and declared in note for note in report.notes)


def wrongly_scaled(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Any:
    assert config.attention_scale == "embed_dim"
    return build(dataclasses.replace(config, attention_scale="head_dim"), parameters)


def test_a_port_that_does_not_fails_with_the_answer() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_conforms(wrongly_scaled, preset="notes-lm", quick=True)
    message = str(caught.value)
    assert "wrongly_scaled differs from the reference" in message
    assert "decoder.layers.0–1.self_attention.scores" in message
    assert "attention-scale" in message
    assert max(map(len, message.splitlines())) <= 100


@pytest.mark.parametrize("verdict", ["diverges", "inconclusive"])
def test_only_agreement_passes(monkeypatch: pytest.MonkeyPatch, verdict: Verdict) -> None:
    monkeypatch.setattr(testing, "check", lambda build, preset, **options: Report(preset, verdict, None))
    with pytest.raises(AssertionError, match=f"{re.escape(MARKS[verdict][0])} The port .* translation, float32"):
        assert_conforms(build)


def test_options_are_those_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def listening(build: Any, preset: str | None, **options: Any) -> Report:
        heard.append((preset, options))
        return Report("x", "agrees", None)

    monkeypatch.setattr(testing, "check", listening)
    config = preset("notes-lm").resized()
    assert_conforms(build, config=config)
    assert_conforms(build, "pre-norm", dtype="float64", logits_only=True)
    assert heard == [(None, {"config": config}), ("pre-norm", {"dtype": "float64", "logits_only": True})]


def test_the_check_is_a_function_of_the_package_and_an_import_brings_nothing_with_it() -> None:
    import transparity_conformance.checking.check as again  # noqa: F401

    assert callable(check)
    assert callable(transparity_conformance.check)
    with pytest.raises(AttributeError, match="no attribute 'chek'"):
        transparity_conformance.chek  # noqa: B018
    script = "import sys, transparity_conformance; print('numpy' in sys.modules, 'rich' in sys.modules)"
    assert run_python("-c", script).stdout.split() == ["False", "False"]


SMALL = preset("notes-lm").resized(embed_dim=4, num_heads=2, num_decoder_layers=1, max_length=5)


def test_nothing_that_was_computed_to_find_a_line_is_kept() -> None:
    probe = next(iter(probes_of(SMALL, "small").values()))
    before = all_recorded()  # other tests in this process may keep recordings
    assert len(intermediates(probe, {}, "logits")) > len(probe.parameters)
    assert len(all_recorded()) <= len(before)


def all_recorded() -> list[Recorded]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, Recorded)]


def test_no_probe_outlives_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Probe]] = []

    def recorded(config: TransformerConfig, case: str) -> dict[str, Probe]:
        found = probes_of(config, case)
        made.extend(weakref.ref(probe) for probe in found.values())
        return found

    monkeypatch.setattr("transparity_conformance.checking.stages.evidence.probes_of", recorded)
    assert check(functools.partial(build, dtype="float32"), config=preset("notes-lm").resized()).verdict == "agrees"
    gc.collect()
    assert made and not [probe for probe in made if probe() is not None]
