"""A forward pass that starts in the middle ends like a full one; faults that exclude each other explain nothing."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from transparity.presets import PRESETS, preset
from transparity_conformance.catalogue import hypotheses, whole_model
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis import walk as walking
from transparity_conformance.diagnosis.explain import _split_by
from transparity_conformance.diagnosis.resume import Start
from transparity_conformance.diagnosis.segment import Segment
from transparity_conformance.diagnosis.walk import Impossible, base_of, walk
from transparity_conformance.oracle.probes import Probe, probes, probes_of


def are_possible(probe: Probe, pair: tuple[Hypothesis, Hypothesis]) -> bool:
    """Return whether two faults can be applied together; both must not set the same part of one formula."""
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
    """Return a probe, and two faults that set the same part of its first norm."""
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
    """Check a fault that removes a tap: a pre-norm model has no norm after a sublayer."""
    config = dataclasses.replace(preset("pre-norm").resized(), norm_position="sandwich")
    probe = next(iter(probes_of(config, "both").values()))
    pre = Hypothesis(Fault("norm-placement", "pre", "in front", fields={"norm_position": "pre"}))
    tap = next(tap for tap in probe.oracle.expected if tap.endswith("_post_norm"))
    assert np.isinf(segment_of(probe, tap).left(probe, (pre,))).all()
    assert np.isfinite(segment_of(probe, tap).left(probe, ())).all()


def test_mistakes_that_exclude_each_other_are_contradicted_by_what_is_right() -> None:
    probe, one, other = excluding("pre-norm")
    (tap,) = one.sites
    segment = dataclasses.replace(segment_of(probe, tap, "logits"), right={probe.name: {tap: 1e9}})
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


def segment_of(probe: Probe, *taps: str) -> Segment:
    """Return the segment that ends at the last of the given taps."""
    recorded = {tap: probe.oracle.expected[tap] for tap in taps}
    return Segment(taps[-1], [probe], {probe.name: recorded}, {probe.name: 1e-6}, "float32")
