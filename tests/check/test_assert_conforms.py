import dataclasses
import functools
import gc
import re
import weakref
from typing import Any

import numpy as np
import pytest
from tests.helpers import run_python

import transparity_conformance
from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance import assert_conforms, check
from transparity_conformance.checking import check as testing
from transparity_conformance.identify.alignment.known_faults import Recorded, intermediates
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.check.view import MARKS
from transparity_conformance.report.report import Report, Verdict
from transparity_numpy.port import build


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
