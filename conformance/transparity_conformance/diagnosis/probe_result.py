"""Compare the activations of a port on one probe with the reference, segment by segment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.catalogue.sites import reads_tokens
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.diagnosis.walk import segment_budgets, walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged, judged_gap, padding_at
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.storage.on_disk import changed, chosen

MOST_FEATURES = 4096
"""If an activation has more features (or logits), reports omit the errors by feature."""


@dataclass
class ProbeResult:
    """A port's activations on one probe, with the error and the budget of each segment."""

    probe: Probe
    recorded: Mapping[str, np.ndarray]
    misshapen: dict[str, str]
    order: list[str]
    budgets: dict[str, float]
    errors: dict[str, float]
    """The largest difference at each tap, without elements that depend on a convention or a near-tie."""
    everywhere: dict[str, float]
    """The largest difference at each tap, including elements that depend on a convention or a near-tie."""
    dtype: str
    """The precision for which the budgets are computed."""

    def judged(self, tap: str, ours: np.ndarray) -> np.ndarray:
        """Return the port's value; elements that depend on a convention or a near-tie come from `ours`."""
        return judged(self.probe, tap, self.recorded[tap], ours, self.dtype, self.recorded)

    def gap(self, tap: str, ours: np.ndarray) -> float:
        return gap(self.judged(tap, ours), ours)

    def gaps_from(self, given: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the differences if the reference continues with the port's values only at the taps in `given`."""
        ours = walk(self.probe, given)
        return {
            tap: judged_gap(self.probe, tap, value, ours[tap], self.dtype, given)
            for tap, value in self.recorded.items()
        }

    def without(self, taps: Collection[str]) -> ProbeResult:
        recorded = chosen(self.recorded, [tap for tap in self.recorded if tap not in taps])
        errors = {tap: error for tap, error in self.errors.items() if tap not in taps}
        return dataclasses.replace(self, recorded=recorded, errors=errors)

    def share(self, tap: str) -> float:
        return share(self.errors[tap], self.budgets[tap])

    @property
    def last(self) -> str:
        """Return the last tap with a right shape, usually the logits."""
        return next(tap for tap in reversed(self.order) if tap in self.recorded)

    @property
    def right(self) -> dict[str, float]:
        return {tap: self.budgets[tap] for tap in self.errors if self.share(tap) <= 1}

    @property
    def wrong(self) -> list[str]:
        return [tap for tap in self.errors if self.share(tap) > 1]


Results = Mapping[str, ProbeResult]


def compare_segments(probe: Probe, shown: Mapping[str, np.ndarray], dtype: str) -> ProbeResult:
    """Compare each activation with the value that the reference computes from the port's earlier activations."""
    shapes = tap_shapes(probe.config, len(next(iter(probe.inputs.values()))), **lengths_of(probe.config, probe.inputs))
    misshapen = {
        tap: f"{tap} has the shape {value.shape} on the probe {probe.name}; expected {shapes[tap]}"
        for tap, value in shown.items()
        if value.shape != shapes[tap]
    }
    right = chosen(shown, [tap for tap in shown if tap not in misshapen])
    recorded = changed(right, lambda value: np.asarray(value, np.float64))
    if recorded.keys() <= {"logits"}:  # without other activations, the reference computes all values itself
        ours: Mapping[str, np.ndarray] = probe.oracle.expected
        budgets = {tap: probe.oracle.budget(tap, dtype) for tap in probe.oracle.noise(dtype)}
    else:
        ours = walk(probe, recorded)
        budgets = segment_budgets(probe, recorded, dtype, neighbours=probe.neighbours, truth=ours)
    return ProbeResult(
        probe=probe,
        recorded=recorded,
        misshapen=misshapen,
        order=list(ours),
        budgets=budgets,
        errors={tap: judged_gap(probe, tap, value, ours[tap], dtype, recorded) for tap, value in recorded.items()}
        | dict.fromkeys(misshapen, math.inf),
        everywhere={tap: gap(value, ours[tap]) for tap, value in recorded.items()},
        dtype=dtype,
    )


def error_profile(actual: np.ndarray, expected: np.ndarray) -> dict[str, Any]:
    """Return the largest error at each index of each axis: row, position, head or feature."""
    with np.errstate(invalid="ignore"):
        error = np.nan_to_num(np.abs(actual - expected), nan=np.inf, posinf=np.inf)
    axes = {2: ("row",), 3: ("row", "position", "feature"), 4: ("row", "head", "position")}[error.ndim]
    if error.shape[-1] > MOST_FEATURES:
        axes = tuple(axis for axis in axes if axis != "feature")
    others = {name: tuple(i for i in range(error.ndim) if i != axis) for axis, name in enumerate(axes)}
    return {name: error.max(axis=rest).tolist() for name, rest in others.items()}


def still_wrong(results: Results, known: Sequence[Hypothesis], most: int = 10_000) -> list[str]:
    wrong: dict[str, None] = {}
    for result in results.values():
        probe, recorded, ours = result.probe, result.recorded, walk(result.probe, result.recorded, known)
        errors = {tap: result.gap(tap, ours[tap]) if tap in ours else math.inf for tap in recorded}
        shares = {tap: share(errors[tap], result.budgets[tap]) for tap in errors}
        within = REMEASURED_WITHIN[result.dtype]
        wrong |= dict.fromkeys(tap for tap in errors if shares[tap] > within)
        if len(wrong) > most:
            break
        if near := [tap for tap in errors if 1 < shares[tap] <= within]:
            budgets = segment_budgets(probe, recorded, result.dtype, known, neighbours=min(2, probe.neighbours))
            wrong |= dict.fromkeys(tap for tap in near if share(errors[tap], budgets[tap]) > 1)
        if len(wrong) > most:
            break
    return sorted(wrong, key=next(iter(results.values())).order.index)


def logits_error(results: Results, known: Sequence[Hypothesis]) -> float:
    return max(
        each.gap(each.last, walk(each.probe, each.recorded, known)[each.last])
        for each in results.values()
        if each.recorded
    )


def real_positions(probe: Probe, tap: str) -> np.ndarray:
    """Return a mask (batch, length) that is false at padding, or `[True]` if padding does not matter at `tap`."""
    config = probe.config
    stack = "encoder" if tap.endswith("memory_norm") else tap.split(".")[0] if "." in tap else config.stacks[-1]
    sees_padding = stack == "decoder" and tap != "logits" and "padding" not in config.decoder_mask
    is_pooled = tap in ("pooled", "logits") and config.is_pooled
    if sees_padding or is_pooled or not reads_tokens(config, f"{stack}.embedding"):
        return np.ones(1, bool)
    return padding_at(probe, f"{stack}.embedding")[:, 0, 0]
