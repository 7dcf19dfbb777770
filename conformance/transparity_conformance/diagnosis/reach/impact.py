"""The impact of divergences: how the logits change if the port's deviations are added to the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results, real_positions
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.undetermined import undetermined_positions
from transparity_conformance.report.report import Divergence, Impact


def with_impact(results: Results, divergences: Sequence[Divergence]) -> tuple[Divergence, ...]:
    """Add the impact to each divergence; divergences with the same cause share one impact."""
    groups: dict[Any, list[str]] = {}
    for number, divergence in enumerate(divergences):
        groups.setdefault(_cause(divergence, number), []).append(divergence.where)
    alone = len(groups) == 1
    impacts = {key: _impact(results, () if alone else taps) for key, taps in groups.items()}
    return tuple(
        dataclasses.replace(divergence, impact=impacts[_cause(divergence, number)])
        for number, divergence in enumerate(divergences)
    )


def _cause(divergence: Divergence, number: int) -> Any:
    return tuple((cause.mistake, cause.says) for cause in divergence.causes) or number


def _impact(results: Results, taps: Sequence[str]) -> Impact | None:
    """Return the effect of the port's deviations at `taps` on the reference's logits; without taps, compare the port's
    own logits. Return None if logits cannot be compared, or if none of `taps` is wrong."""
    if taps and not any(_wrong(result, taps) for result in results.values()):
        return None
    real = changed = moved = padded = 0
    head = "logits"
    for result in results.values():
        if any(tap in result.misshapen for tap in taps or ("logits",)) or "logits" not in result.recorded:
            return None
        probe, expected = result.probe, result.probe.oracle.expected["logits"]
        head = probe.config.head
        logits = _injected(result, taps) if taps else result.recorded["logits"]
        off = ~(np.abs(logits - expected) <= probe.oracle.budget("logits", result.dtype))
        if (free := undetermined_positions(probe, result.dtype).get("logits")) is not None:
            off &= ~(free & np.isfinite(logits))
        wrong, tokens = off.any(-1), np.broadcast_to(real_positions(probe, "logits"), off.shape[:-1])
        real, changed, padded = real + int(tokens.sum()), changed + int(wrong[tokens].sum()), padded + int(wrong.sum())
        moved += int((wrong & tokens & (logits.argmax(-1) != expected.argmax(-1))).sum())
    return Impact({"changed": changed, "of": real}, moved, at_padding_only=bool(padded and not changed), head=head)


def _wrong(result: ProbeResult, taps: Sequence[str]) -> list[str]:
    return [tap for tap in taps if tap in result.recorded and result.share(tap) > 1]


def _injected(result: ProbeResult, taps: Sequence[str]) -> np.ndarray:
    wrong = _wrong(result, taps)
    expected = result.probe.oracle.expected["logits"]
    if not wrong:
        return expected
    ours = walk(result.probe, result.recorded)
    apart = {tap: result.recorded[tap] - ours[tap] for tap in wrong}
    deviation = Fault("deviation", "", "", patch=lambda state, tap, value: value + apart[tap])
    return walk(result.probe, {}, [Hypothesis(deviation, tuple(wrong))])["logits"]
