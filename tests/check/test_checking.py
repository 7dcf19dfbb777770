"""The check: its answer has the shape that was promised, and it fails closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.power.plain_port import PlainFault, build_port
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.checking.check import PortError
from transparity_conformance.report.check.findings import sentence
from transparity_numpy.port import build

Arrays = dict[str, np.ndarray]

SCORES = "decoder.layers.0.self_attention.scores"


def changed(change: Callable[[Arrays], Any]) -> Callable[..., Any]:
    """Our own port, with what it says changed in place."""

    def wrong(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        forward = build(config, parameters)

        def answer(**tokens: Any) -> Any:
            said = dict(forward(**tokens))
            replaced = change(said)
            return said if replaced is None else replaced

        return answer

    return wrong


def test_a_report_has_the_keys_that_were_promised() -> None:
    report = check(build_port(PlainFault("attention-scale", "the other root")), preset="translation").as_dict()
    assert {"preset", "verdict", "first_divergence", "faults", "claims", "not_compared"} <= set(report)
    assert report["faults"] and report["claims"] and report["not_compared"]
    for fault in report["faults"]:
        assert {"where", "error", "budget", "causes", "indistinguishable", "split_by"} <= set(fault)
        for cause in fault["causes"]:
            assert set(cause) == {"mistake", "says", "value", "residual", "explained", "at", "source"}
    for claim in report["claims"]:
        assert set(claim) == {"id", "verdict", "error", "budget", "where"}


@pytest.mark.sampled(18)
@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
@pytest.mark.parametrize(
    ("variant", "says"),
    [
        ("bfloat16 weights", "rounding of bfloat16 weights"),
        ("float16 weights", "rounding of float16 weights"),
        ("bfloat16 arithmetic", "rounding of bfloat16 arithmetic"),
        ("tf32 products", "rounding of the factors of matrix products to TF32"),
    ],
)
@pytest.mark.parametrize("preset", ["translation", "notes-lm"])
def test_undeclared_rounding_diverges_and_is_named(preset: str, variant: str, says: str, logits_only: bool) -> None:
    report = check(build_port(PlainFault("low-precision", variant)), preset=preset, logits_only=logits_only)
    assert (report.verdict, report.exit_code) == ("diverges", 1)
    ((cause,),) = (fault.causes for fault in report.faults)
    assert (cause.mistake, cause.says) == ("low-precision", says)
    declared = f"--dtype {variant.split()[0]}" if "float16" in variant else "allow_tf32 = False"
    assert any("asked for float32" in note and declared in note for note in report.notes)


def test_declared_rounding_agrees() -> None:
    port = build_port(PlainFault("low-precision", "bfloat16 arithmetic"))
    assert check(port, preset="notes-lm", dtype="bfloat16").verdict == "agrees"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_tap_behind_right_logits_is_held_to_the_budget_of_the_precision(dtype: str) -> None:
    """One number of a tap is off by 1e-9, which only float64 could tell."""

    def behind(config: TransformerConfig, parameters: Arrays) -> Any:
        forward = build(config, parameters, dtype="float64")

        def port(**tokens: np.ndarray) -> Any:
            taps = forward(**tokens)
            taps["decoder.layers.1.output"] = taps["decoder.layers.1.output"] + 1e-9
            return taps

        return port

    expected = {"float64": "diverges", "bfloat16": "agrees"}[dtype]
    assert check(behind, preset="notes-lm", dtype=dtype).verdict == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "logits_only", [pytest.param(False, id="taps"), pytest.param(True, id="logits", marks=pytest.mark.long)]
)
def test_rounding_excuses_no_mistake(logits_only: bool) -> None:
    faults = (PlainFault("low-precision", "tf32 products"), PlainFault("attention-scale", "the other root"))
    assert check(build_port(faults), preset="notes-attention", logits_only=logits_only).verdict == "diverges"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tap", ["logits", SCORES, "decoder.layers.1.output", "decoder.embedding"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_one_number_that_is_none_never_agrees(tap: str, number: float) -> None:
    def spoil(said: Arrays) -> None:
        said[tap] = said[tap].copy()
        said[tap].flat[-1] = number

    report = check(changed(spoil), preset="notes-lm")
    assert report.verdict == "diverges" and report.first_divergence == tap


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tap", [SCORES, "decoder.layers.0.self_attention.query", "decoder.layers.1.output"])
def test_one_wrong_number_beside_right_logits_diverges(tap: str) -> None:
    def spoil(said: Arrays) -> None:
        said[tap] = said[tap].copy()
        said[tap].flat[0] += 0.01

    report = check(changed(spoil), preset="notes-lm")
    assert report.verdict == "diverges"
    assert report.faults[0].where == tap


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tap", ["logits", SCORES])
def test_rounding_excuses_no_wrong_shape(tap: str) -> None:
    def wrong(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        rounded = {name: value.astype(np.float16).astype(np.float32) for name, value in parameters.items()}
        forward = build(config, rounded)

        def answer(**tokens: Any) -> Any:
            said = dict(forward(**tokens))
            return said["logits"][:, :-1] if tap == "logits" else said | {tap: said[tap][..., :-1]}

        return answer

    report = check(wrong, preset="notes-lm")
    assert report.verdict == "diverges"
    assert any(f"{tap} has the shape" in note for note in report.notes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("tap", ["logits", SCORES, "decoder.layers.1.output"])
@pytest.mark.parametrize("shape", [lambda x: x.swapaxes(0, 1), lambda x: x[..., :-1], lambda x: x[None]])
def test_nothing_is_transposed_cut_or_broadcast_to_fit(tap: str, shape: Callable[[np.ndarray], np.ndarray]) -> None:
    report = check(changed(lambda said: said.update({tap: shape(said[tap])})), preset="notes-lm")
    assert report.verdict == "diverges"
    assert any(f"{tap} has the shape" in note for note in report.notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: {"logits": said["logits"], "decoder.layer.0.output": said["logits"]}, "which is no tap"),
        (lambda said: {SCORES: said[SCORES]}, "expected at least 'logits'"),
        (lambda said: {}, "expected at least 'logits'"),
        (lambda said: {"logits": None} | said | {"logits": "x"}, "no array of numbers"),
        (lambda said: said["logits"].astype(complex), "no array of numbers"),
        (lambda said: said["logits"] > 0, "no array of numbers"),
        (lambda said: said["logits"].astype(object), "no array of numbers"),
    ],
)
def test_what_is_no_answer_is_refused(change: Callable[[Arrays], Any], says: str) -> None:
    with pytest.raises(PortError, match=says):
        check(changed(change), preset="notes-lm")


def test_a_port_that_draws_is_told_so() -> None:
    draw = np.random.default_rng(0)

    def noisy(said: Arrays) -> Any:
        return {"logits": said["logits"] + draw.normal(0, 0.1, said["logits"].shape)}

    (fault,) = check(changed(noisy), preset="notes-lm").faults
    assert [cause.mistake for cause in fault.causes] == ["dropout-active"]


@pytest.mark.long
def test_what_is_told_its_precision_takes_it_by_name() -> None:
    told: list[str] = []

    def by_name(config: TransformerConfig, parameters: Arrays, dtype: str = "float32") -> Any:
        told.append(dtype)
        return build(config, parameters, dtype=dtype)

    def by_type(config: TransformerConfig, parameters: Arrays, dtype: type = np.float32) -> Any:
        return build(config, parameters, dtype=np.dtype(dtype).name)

    assert check(by_name, preset="notes-lm", dtype="float64").verdict == "agrees"
    assert set(told) == {"float64"}
    (fault,) = check(by_type, preset="notes-lm", dtype="float64").faults
    assert fault.causes[0].says == "rounding of float32 arithmetic"


def test_what_a_port_of_another_precision_offers_is_not_held_to_this_one() -> None:
    pytorch = pytest.importorskip("transparity_pytorch.port")
    report = check(
        lambda config, parameters: pytorch.build(config, parameters, dtype="bfloat16"), preset="notes-attention"
    )
    assert report.verdict == "diverges"
    says = "the port's forward pass is off by rounding of bfloat16 arithmetic, and all that it offers with it"
    assert {f"{name}: {says}" for name in ("loss", "generate", "step", "train")} <= set(report.not_compared)


def test_another_shape_and_what_is_no_number_are_told_apart() -> None:
    misshapen = check(changed(lambda said: said.update({SCORES: said[SCORES][:1]})), preset="notes-lm")
    (fault,) = misshapen.faults
    assert fault.is_misshapen and "of another shape (see the notes)" in sentence(misshapen)
    assert any("has the shape (1, " in note for note in misshapen.notes)
    lost = check(changed(lambda said: said.update(logits=said["logits"] * np.nan)), preset="notes-lm")
    assert "logits: holds numbers that are not finite" in sentence(lost)
