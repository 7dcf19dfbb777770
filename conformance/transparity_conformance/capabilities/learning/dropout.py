"""Gradients with dropout: the same seed must draw the same masks, also when activations are recomputed.

The checker does not know a port's masks, so it compares the port's runs with each other, and not with the reference.
"""

from collections.abc import Collection, Mapping

import numpy as np

from transparity_conformance.capabilities.capability import Judged, result
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import SHARE, gap
from transparity_conformance.report.formatting import some
from transparity_conformance.report.report import CapabilityResult, Cause

CLAIM = "gradients.dropout"
FIRST, AGAIN, RECOMPUTED = "with dropout", "with dropout, again", "with dropout, recomputed"

RUNS = {FIRST: {"seed": 7}, AGAIN: {"seed": 7}, RECOMPUTED: {"seed": 7, "checkpointing": True}}
"""The keyword arguments of each run. With a seed, a port computes the gradients in training mode."""


def why_no_dropout(probe: Probe, dtype: str) -> str:
    return "" if probe.config.dropout else "the configuration has no dropout"


def judge_dropout(
    ours: Derivatives,
    runs: Mapping[str, Mapping[str, np.ndarray]],
    dtype: str,
    name: str,
    unknown: Collection[str] = (),
) -> CapabilityResult:
    """Compare derivatives of the runs along the directions of `ours`; leave out the parameters in `unknown`. Each run
    has rounding errors, so the tolerance of a difference is twice the tolerance of a gradient. The tolerance grows if
    the port's gradients are larger than the reference's."""
    found = {run: ours.along(gradients) for run, gradients in runs.items()}
    expected = {each: value for each, value in ours.expected.items() if each not in unknown}
    if missing := [each for each in expected if any(each not in gradients for gradients in found.values())]:
        says = f"with a seed, the port returns no gradient of the parameter's shape for {some(missing)}"
        worst = Judged(np.inf, 0.0, missing[0], probe=name)
        return result(CLAIM, worst, [Cause("gradient-missing", says)])

    def compared(each: str, other: Mapping[str, np.ndarray]) -> Judged:
        size = float(np.abs(found[FIRST][each]).max() / (np.abs(expected[each]).max() or np.inf))
        budget = 2 * max(1.0, size) * ours.budget(each, dtype)
        return Judged(gap(found[FIRST][each], other[each]), budget, each, probe=name)

    def off(other: Mapping[str, np.ndarray]) -> Judged:
        return max((compared(each, other) for each in expected), key=SHARE)

    if not off(expected).is_wrong:
        says = "with a seed, the gradients equal the gradients without dropout"
        return result(CLAIM, Judged(np.inf, 0.0, name, probe=name), [Cause("dropout-inactive", says)])
    again, recomputed = off(found[AGAIN]), off(found[RECOMPUTED])
    says = "recomputation draws another dropout mask than the first forward pass"
    if again.is_wrong:
        says = "two runs with the same seed draw different dropout masks"
    return result(CLAIM, max(again, recomputed, key=SHARE), [Cause("dropout-redrawn", says)])
