"""The losses that a port says, held to the cross-entropy of its own logits.

A loss is a segment of its own: the reference takes the port's own logits, so that wrong logits are no wrong loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from transparity_conformance.capabilities.faults.loss import LOSS_FAULTS, smoothed
from transparity_conformance.oracle.derivatives import Loss, targets_of
from transparity_conformance.oracle.oracle import function_oracle
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.capability_result import CapabilityResult, alternatives, not_compared
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence
from transparity_numpy.loss import cross_entropy

Logits = Mapping[str, np.ndarray]
"""What the port said (batch, length, vocab), by probe."""

Numbers = Mapping[str, np.float64]
"""By probe; NumPy's, for what is too large or divided by nothing is a number there, and no exception."""


def with_a_loss(probes: Mapping[str, Probe], logits: Logits) -> list[str]:
    """The probes whose loss can be compared: with logits of the right shape, and a target that counts."""
    return [
        key
        for key, probe in probes.items()
        if key in logits and logits[key].shape == probe.oracle.expected["logits"].shape and _counts(probe)
    ]


@np.errstate(all="ignore")  # a port may say anything
def judge_losses(
    name: str, losses: Mapping[str, float], probes: Mapping[str, Probe], logits: Logits, dtype: str
) -> tuple[CapabilityResult, Loss | None]:
    """Hold the losses of `with_a_loss` to the reference; and which loss they are, or None if that cannot be told."""
    if not losses:
        return not_compared(f"{name}: no probe has logits and a target that counts"), None
    said = {key: np.float64(loss) for key, loss in losses.items()}
    budgets = {key: _budget(probes[key], logits[key], dtype) for key in said}

    def errors(loss: Loss) -> dict[str, float]:
        return {key: gap(np.array(said[key]), _exactly(loss, probes[key], logits[key])) for key in said}

    off = errors(cross_entropy)
    worst = max(said, key=lambda key: share(off[key], budgets[key]))
    if share(off[worst], budgets[worst]) <= 1:
        return CapabilityResult((ClaimResult(name, "agrees", off[worst], budgets[worst], worst),)), cross_entropy

    right = {key: np.float64(_exactly(cross_entropy, probes[key], logits[key])) for key in said}
    # A loss rounds by its own size: a sum by more than a mean.
    sizes = {key: abs(float(said[key] / right[key])) for key in said}
    grown = {key: max(1.0, size if math.isfinite(size) else 1.0) * budgets[key] for key, size in sizes.items()}
    left = {fault: errors(fault.simulate) for fault in LOSS_FAULTS}
    explaining = [fault for fault in LOSS_FAULTS if all(share(left[fault][key], grown[key]) <= 1 for key in said)]
    causes: tuple[Cause, ...]
    if explaining:
        first, residual = explaining[0], left[explaining[0]][worst]
        causes = (Cause(first.id, first.says, None, residual, 1 - residual / off[worst]),)
    else:
        even = {key: np.float64(_exactly(smoothed, probes[key], logits[key])) for key in said}
        causes = tuple(_fitted(said, right, even, budgets, worst))[:1]
    claim = ClaimResult(name, "diverges", off[worst], budgets[worst], worst)
    fault = Divergence(name, off[worst], budgets[worst], causes, alternatives(explaining), probe=worst)
    return CapabilityResult((claim,), (fault,)), explaining[0].simulate if explaining else None


def _fitted(said: Numbers, right: Numbers, even: Numbers, budgets: Mapping[str, float], worst: str) -> Iterator[Cause]:
    """One factor, or one share of label smoothing, for all probes; of one probe alone it would say nothing. `even` are
    the losses where every token is aimed at alike."""
    if len(said) < 2:
        return
    before = abs(said[worst] - right[worst])
    toward = {key: even[key] - right[key] for key in said}
    smoothing = sum((said[key] - right[key]) * toward[key] for key in said) / sum(toward[key] ** 2 for key in said)
    left = {key: float(abs(said[key] - right[key] - smoothing * toward[key])) for key in said}
    if all(left[key] <= budgets[key] for key in said):
        says = f"the targets are smoothed by {smoothing:.4g} (label smoothing)"
        yield Cause("loss-smoothing", says, float(smoothing), left[worst], float(1 - left[worst] / before))
    factor = sum(said[key] * right[key] for key in said) / sum(right[key] ** 2 for key in said)
    left = {key: float(abs(said[key] - factor * right[key])) for key in said}
    if all(left[key] <= max(1.0, abs(factor)) * budgets[key] for key in said):
        says = f"your losses are {factor:.6g} × ours"
        yield Cause("loss-scale", says, float(factor), left[worst], float(1 - left[worst] / before))


def _counts(probe: Probe) -> bool:
    targets, pad_id = targets_of(probe.config, probe.inputs), probe.config.pad_id
    return pad_id is None or bool((targets != pad_id).any())


def _exactly(loss: Loss, probe: Probe, logits: np.ndarray) -> np.ndarray:
    targets = targets_of(probe.config, probe.inputs).astype(np.int64)
    return np.asarray(loss(logits.astype(np.float64), targets, probe.config.pad_id))


def _budget(probe: Probe, logits: np.ndarray, dtype: str) -> float:
    """Of a loss that may have been taken from logits before they were rounded."""
    targets: np.ndarray = targets_of(probe.config, probe.inputs).astype(np.int64)
    arrays = {"logits": logits.astype(np.float32), "targets": targets}
    oracle = function_oracle("loss.cross_entropy", arrays, pad_id=probe.config.pad_id)
    # A mean of differences of logits is no further off than two logits are.
    return oracle.budget("result", dtype) + 2 * probe.oracle.budget("logits", dtype)
