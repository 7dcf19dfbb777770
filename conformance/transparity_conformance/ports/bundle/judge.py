"""What a port wrote for the optional sections of a bundle, judged as what a port here offers is."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from transparity_conformance.capabilities.gradients import judge_gradients, why_no_gradients
from transparity_conformance.capabilities.incremental_decoding import judge_steps, why_no_steps
from transparity_conformance.capabilities.loss import judge_losses, with_a_loss
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.oracle.derivatives import Loss
from transparity_conformance.ports.bundle.sections import Probes, chunk_names, gradient_names
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.report import Verdict
from transparity_numpy.loss import cross_entropy

FEW = "too little of the forward pass was compared"


def judge_sections(
    sections: Collection[str],
    probes: Probes,
    said: Actual,
    dtype: str,
    forward: Verdict,
    *,
    stopped: bool = False,
) -> CapabilityResult:
    """Hold what was written to the reference, where the verdict on the forward pass allows for it. A port that was
    `stopped` may have been about to write what is missing."""
    found = CapabilityResult()
    if "gradients" in sections:
        losses, loss = _judge_losses(probes, said, dtype)
        found += losses + _judge_gradients(probes, said, loss or cross_entropy, dtype, forward, stopped=stopped)
    if "steps" in sections:
        found += _judge_steps(probes, said, dtype, forward)
    return found


def _judge_losses(probes: Probes, said: Actual, dtype: str) -> tuple[CapabilityResult, Loss | None]:
    logits = {key: taps["logits"] for key, taps in said.items() if "logits" in taps}
    comparable = with_a_loss(probes, logits)
    losses = {key: float(said[key]["loss"]) for key in comparable if "loss" in said[key]}
    missing = [key for key in comparable if key not in losses]
    if missing and not losses:
        return not_compared("loss: the port did not write it"), None
    judged, loss = judge_losses("loss", losses, probes, logits, dtype)
    reasons = [f"loss: the port did not write it for {', '.join(missing)}"] if missing else []
    return not_compared(*reasons) + judged, loss


def _judge_gradients(
    probes: Probes, said: Actual, loss: Loss, dtype: str, forward: Verdict, *, stopped: bool
) -> CapabilityResult:
    key, probe = next(iter(probes.items()))
    reasons = {"diverges": "the forward pass diverges, so its gradients are another function's", "inconclusive": FEW}
    if reason := reasons.get(forward) or why_no_gradients(probe, dtype):
        return not_compared(f"gradients: {reason}")
    names = gradient_names(probe, dtype)
    gradients = {name: said[key][written] for name, written in names.items() if written in said[key]}
    missing = [written for written in names.values() if written not in said[key]]
    if not missing:
        return judge_gradients(gradients, probe, loss, dtype)
    skipped = not_compared(f"gradients: the port did not write {_some(missing, len(names))}")
    # Of a backward pass that came to its end, a gradient that is not there is one that nothing reached.
    return skipped if stopped or not gradients else skipped + judge_gradients(gradients, probe, loss, dtype)


def _judge_steps(probes: Probes, said: Actual, dtype: str, forward: Verdict) -> CapabilityResult:
    key, probe = next(iter(probes.items()))
    reasons = {"diverges": "the forward pass diverges, and what is cached with it", "inconclusive": FEW}
    if reason := why_no_steps(probe.config) or reasons.get(forward):
        return not_compared(f"step: {reason}")
    ways = chunk_names(probe)
    missing = {way: [name for name in chunks if name not in said[key]] for way, chunks in ways.items()}
    whole = [way for way in ways if not missing[way]]
    if all(len(missing[way]) == len(ways[way]) for way in ways):
        return not_compared("step: the port did not write any")
    skipped = not_compared(
        *(f"step: {way}, the port did not write {_some(missing[way], len(ways[way]))}" for way in ways if missing[way])
    )
    logits = {way: _joined(said[key], ways[way]) for way in whole}
    return skipped + judge_steps(logits, probe, dtype) if whole else skipped


def _joined(said: Mapping[str, np.ndarray], chunks: Collection[str]) -> np.ndarray:
    """The logits (batch, length, vocab) of all chunks."""
    return np.concatenate([said[name].astype(np.float64) for name in chunks], axis=1)


def _some(missing: list[str], of: int) -> str:
    listed = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
    return "any" if len(missing) == of else f"{len(missing)} of {of} ({listed})"
