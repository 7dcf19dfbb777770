import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from transparity.presets import PRESETS, preset
from transparity.taps import recording
from transparity_conformance.catalogue import hypotheses, whole_model
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis import walk as walking
from transparity_conformance.diagnosis.explain import _split_by
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.diagnosis.probe_result import compare_segments
from transparity_conformance.diagnosis.resume import Start
from transparity_conformance.diagnosis.segment import Segment
from transparity_conformance.diagnosis.walk import Impossible, base_of, walk
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters, probes, probes_of
from transparity_conformance.oracle.undetermined import tied_positions
from transparity_conformance.report.report import Report
from transparity_numpy import experts
from transparity_numpy.transformer import transformer


def are_possible(probe: Probe, pair: tuple[Hypothesis, Hypothesis]) -> bool:
    """Return whether two faults can act together; two faults that set the same part of a formula cannot."""
    try:
        walk(probe, {}, pair)
    except Impossible:
        return False
    return True


@pytest.mark.parametrize("case", PRESETS)
def test_what_is_skipped_makes_no_difference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = probes(case)["mixed"]
    taps = list(probe.oracle.expected)
    draw, noise = random.Random(1), np.random.default_rng(3)
    shown = {name: x * (1 + 1e-3 * noise.normal(size=x.shape)) for name, x in probe.oracle.expected.items()}
    coarse = {name: x for name, x in shown.items() if name == "encoder.output" or name.count(".") == 3}
    known = hypotheses(probe.config, taps)
    doubled = Fault("twice", "twice", "outputs are doubled", downstream=lambda state, name, value: 2 * value)
    handed_on = [Hypothesis(doubled, (name,)) for name in taps if name.count(".") == 3 and name.endswith("output")]
    drawn = [(draw.choice(some), draw.choice(known)) for some in (known, handed_on) for _ in range(40)]
    chosen = [pair for pair in drawn if are_possible(probe, pair)]
    assert len(chosen) > len(drawn) / 2
    ends = [draw.choice(taps) for _ in chosen]
    base = base_of(probe, {})

    def walks() -> list[np.ndarray]:
        of_logits = [walk(probe, {}, (one,), until="logits", base=base)["logits"] for one, _ in chosen]
        pairs = zip(chosen, ends, strict=True)
        return of_logits + [
            walk(probe, flows, pair, until=end)[end] for pair, end in pairs for flows in (shown, coarse)
        ]

    skipping = walks()
    monkeypatch.setattr(walking, "_start", lambda config, *rest: Start(config, {}))
    for one, other in zip(skipping, walks(), strict=True):
        np.testing.assert_array_equal(one, other)


def excluding(case: str) -> tuple[Probe, Hypothesis, Hypothesis]:
    """Return a probe, and two faults that both set the eps of the model's first norm."""
    probe = probes(case)["mixed"]
    tap = next(tap for tap in probe.oracle.expected if tap.endswith("_norm"))
    eps = [one for one in hypotheses(probe.config, [tap]) if one.fault.id == "norm-eps" and one.sites == (tap,)]
    return probe, eps[0], eps[1]


def test_two_mistakes_that_cannot_both_be_made_explain_nothing() -> None:
    probe = probes("shared-heads")["mixed"]
    known = [*hypotheses(probe.config, list(probe.oracle.expected)), *whole_model(probe.config)]
    moved = next(one for one in known if one.fault.fields and "norm_position" in one.fault.fields)
    normed = next(one for one in known if one.fault.variant == "before the residual")
    segment = segment_of(probe, "logits")
    assert not np.isfinite(segment.left(probe, (moved, normed))).any()
    assert segment.share(probe, (moved, normed)) > 1


def test_a_mistake_that_leaves_out_the_tap_explains_nothing_at_it() -> None:
    """The mistake makes the model pre-norm, so the model has no norm after a sublayer."""
    config = dataclasses.replace(preset("pre-norm").resized(), norm_position="sandwich")
    probe = next(iter(probes_of(config, "both").values()))
    pre = Hypothesis(Fault("norm-placement", "pre", "in front", fields={"norm_position": "pre"}))
    tap = next(tap for tap in probe.oracle.expected if tap.endswith("_post_norm"))
    assert np.isinf(segment_of(probe, tap).left(probe, (pre,))).all()
    assert np.isfinite(segment_of(probe, tap).left(probe, ())).all()


def test_mistakes_that_exclude_each_other_are_contradicted_by_what_is_right() -> None:
    probe, one, other = excluding("pre-norm")
    (tap,) = one.sites
    segment = segment_of(probe, tap, "logits", budgets={tap: 1e9, "logits": 0.0})
    assert segment.is_contradicted(probe, (one, other))
    assert not segment.is_contradicted(probe, (one,))


def test_a_probe_on_which_one_of_two_causes_cannot_be_made_tells_them_apart() -> None:
    probe, one, other = excluding("pre-norm")
    segment, others = segment_of(probe, "logits"), {probe.name: probe}
    harmless = Hypothesis(Fault("none", "none", "nothing is changed"))
    assert _split_by(segment, (one,), (harmless,), (other,), others) == probe.name
    assert _split_by(segment, (one,), (other,), (harmless,), others) == probe.name
    assert _split_by(segment, (one,), (other,), (other,), others) is None
    assert _split_by(segment, (one,), (harmless,), (harmless,), others) is None


def segment_of(probe: Probe, *taps: str, budgets: dict[str, float] | None = None) -> Segment:
    result = compare_segments(probe, {tap: probe.oracle.expected[tap] for tap in taps}, "float32")
    return Segment(taps[-1], {probe.name: dataclasses.replace(result, budgets=budgets or dict.fromkeys(taps, 1e-6))})


ROUTER = "decoder.layers.1.feed_forward.router.weight"


@functools.cache
def probe(*, tied: bool = True, case: str = "mixtral") -> Probe:
    config = CASES[case]
    parameters = probe_parameters(config)
    if tied:
        router = parameters[ROUTER].copy()
        router[3] = np.nextafter(router[1], np.float32(np.inf))
        parameters[ROUTER] = router
    return Probe("near-ties", "mixed", "experts that tie", config, parameters, mixed_inputs(config))


def last_of_equals(x: np.ndarray, count: int) -> np.ndarray:
    """Choose the `count` highest numbers like `highest`, but prefer the last of almost equal numbers."""
    favoured = x + np.arange(x.shape[-1]) * np.float32(1e-6)
    return highest(favoured.astype(x.dtype), count)


highest = experts.highest


def answers(of: Probe, choice: Callable[..., np.ndarray] = highest) -> Arrays:
    taps: Arrays = {}
    given: dict[str, Any] = dict(of.inputs)
    with patch("transparity_numpy.experts.highest", choice):
        transformer(of.config, of.parameters, **given, tap=recording(taps))
    return taps


def verdict(of: Probe, taps: Arrays, *, logits_only: bool = False, dtype: str = "float32") -> Report:
    return judge("near-ties", {of.name: of}, {of.name: taps}, logits_only=logits_only, dtype=dtype)


@pytest.mark.parametrize("logits_only", [False, True])
def test_another_choice_in_a_near_tie_is_no_fault(logits_only: bool) -> None:
    """Expect `agrees` if the port returns taps; otherwise `inconclusive` if near-ties affect most positions."""
    report = verdict(probe(), answers(probe(), last_of_equals), logits_only=logits_only)
    assert not report.faults
    assert any(note.startswith("near_ties: ") for note in report.notes)
    tied, total = tied_positions(probe(), "float32")["logits"].any(-1), probe().inputs["tokens"].size
    assert report.verdict == ("inconclusive" if logits_only and 2 * tied.sum() > total else "agrees")


@pytest.mark.parametrize("tied", [True, False])
def test_a_wrong_choice_is_a_fault(tied: bool) -> None:
    def one_fewer(x: np.ndarray, count: int) -> np.ndarray:
        return highest(x, count - 1)

    report = verdict(probe(tied=tied), answers(probe(tied=tied), one_fewer))
    assert report.verdict == "diverges"
    assert {cause.mistake for fault in report.faults for cause in fault.causes} == {"router-count"}


@pytest.mark.parametrize("case", ["mixtral", "deepseek"])
def test_rounding_is_measured_with_the_exact_choice(case: str) -> None:
    """The budget of bfloat16 is small; if rounding changed the chosen experts, the budget would be much larger."""
    of = probe(tied=False, case=case)
    assert of.oracle.budget("logits", "bfloat16") < np.abs(of.oracle.expected["logits"]).max() / 2


def test_few_positions_of_an_ordinary_model_are_near_ties() -> None:
    assert tied_positions(probe(tied=False), "float32") == {}
