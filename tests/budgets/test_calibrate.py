import dataclasses
from typing import Any

import numpy as np
import pytest

from transparity_conformance import check
from transparity_conformance.oracle import calibrate
from transparity_conformance.oracle.budgets import NEIGHBOURS_OF_HOT, RULES, rounded_to
from transparity_conformance.oracle.cases import AUDIO, CASES
from transparity_conformance.oracle.oracle import Oracle, forward_oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_numpy.transformer import transformer
from transparity_pytorch.port import build


@pytest.fixture(scope="module")
def found() -> list[calibrate.Sample]:
    return calibrate.measure("float32", drawn=0, seeds=1, cases=["notes-lm"])


def test_the_constants_cover_a_sample(found: list[calibrate.Sample]) -> None:
    assert all(row.covers for row in calibrate.rows("float32", found, RULES["float32"]))


def test_a_factor_that_is_too_small_is_found(found: list[calibrate.Sample]) -> None:
    worst = max(sample.ratio(0) for sample in found)
    small = dataclasses.replace(RULES["float32"], factor=worst / 2, floor=0)
    assert not calibrate.rows("float32", found, small)[0].covers


def test_a_floor_that_is_too_small_is_found(found: list[calibrate.Sample]) -> None:
    silent = [dataclasses.replace(sample, noise=0.0) for sample in found]
    small = dataclasses.replace(RULES["float32"], floor=0)
    assert not any(row.covers for row in calibrate.rows("float32", silent, small))


def test_a_session_with_a_small_constant_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = calibrate.Sample(error=5.0, noise=1.0, ulp=0.0)
    monkeypatch.setattr(calibrate, "measure", lambda *_: [sample])
    monkeypatch.setattr("sys.argv", ["calibrate"])
    assert calibrate.main() == 1
    monkeypatch.setattr(calibrate, "measure", lambda *_: [dataclasses.replace(sample, error=1.0)])
    assert calibrate.main() == 0


def test_noise_that_is_no_number_is_an_infinite_budget() -> None:
    def run(arrays: dict[str, np.ndarray], tap: object) -> None:
        value = arrays["x"]
        tap("x", value * np.nan if value.dtype == np.float32 else value)  # type: ignore[operator]

    assert Oracle(run, {"x": np.ones(3)}).budget("x", "float32") == np.inf


MODELS = CASES | {"audio": AUDIO, "audio, learned": dataclasses.replace(AUDIO, encoder_positions="learned")}


@pytest.mark.parametrize("case", sorted(MODELS))
def test_a_model_with_permuted_sums_is_the_same_model(case: str) -> None:
    config = MODELS[case]
    parameters, inputs = probe_parameters(config), mixed_inputs(config)
    oracle = forward_oracle(config, parameters, inputs, neighbours=NEIGHBOURS_OF_HOT)
    found = calibrate.samples(config, parameters, inputs, oracle, "float64")
    assert max(sample.ratio(RULES["float64"].floor) for sample in found) < RULES["float64"].factor


@pytest.mark.parametrize("preset", ["notes-lm", "translation"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_port_is_not_alarmed(preset: str, dtype: str) -> None:
    def port(config: Any, parameters: dict[str, np.ndarray]) -> Any:
        forward = build(config, parameters, dtype=dtype)
        return lambda **tokens: forward(**tokens)  # noqa: PLW0108 - offers nothing else

    report = check(port, preset=preset, dtype=dtype, logits_only=True)
    assert report.verdict == "agrees", report.notes


def test_a_fault_under_logits_that_are_cast_is_told_from_the_cast() -> None:
    def cast(config: Any, parameters: dict[str, np.ndarray]) -> Any:
        wrong = parameters | {"head.bias": parameters["head.bias"] * np.float32(0.9)}
        return lambda **tokens: rounded_to(np.asarray(transformer(config, wrong, **tokens)), "bfloat16")

    report = check(cast, preset="translation", logits_only=True)
    assert report.verdict == "diverges"
    assert any("the head bias is missing" in note for note in report.notes)
    assert any(cause.mistake == "low-precision" for fault in report.faults for cause in fault.causes)
