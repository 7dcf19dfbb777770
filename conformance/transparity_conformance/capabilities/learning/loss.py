"""The capability `loss`. The expected loss is the cross-entropy of the port's own, possibly wrong logits."""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.capability import (
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Judged,
    Way,
    compare_answers,
)
from transparity_conformance.capabilities.faults import LOSS_FAULTS, SimulatedFault, loss_faults
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.oracle.differentiation.derivatives import Loss, targets_of
from transparity_conformance.oracle.oracle import function_oracle
from transparity_conformance.oracle.probes import Probe, as_given
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_conformance.report.report import CapabilityResult, Cause, not_compared
from transparity_numpy.training.loss import cross_entropy

Numbers = Mapping[str, np.float64]
"""One NumPy float per probe. Unlike Python floats, NumPy floats overflow without an exception."""


def why_no_loss(probe: Probe, dtype: str) -> str:
    head = probe.config.head
    return "" if head == "logits" else f"no loss is defined for the head {head!r}"


def has_a_loss(key: str, forward: ForwardPass) -> bool:
    probe, logits = forward.probes[key], forward.logits.get(key)
    counted = targets_of(probe.config, probe.inputs) != probe.config.pad_id
    return logits is not None and logits.shape == probe.oracle.expected["logits"].shape and bool(np.any(counted))


def loss_inputs(probe: Probe) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    targets = targets_of(probe.config, probe.inputs).astype(np.int64)
    return targets, {name: as_given(value) for name, value in probe.inputs.items()}


def as_loss(value: Any) -> np.ndarray:
    array = as_numbers(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise TypeError(f"the loss has the shape {array.shape} and the dtype {array.dtype}; expected one number")
    return array.reshape(()).astype(np.float64)


@np.errstate(all="ignore")  # a port may return any number
def judge_losses(
    name: str, losses: Mapping[str, float], forward: ForwardPass, likely: Sequence[SimulatedFault] = ()
) -> tuple[CapabilityResult, Loss | None]:
    """Compare losses with the losses of the port's own logits; `name` is the name of the claim. Also return the loss
    function that the port seems to compute, or None if no known function fits. Try the faults `likely` first."""
    if not losses:
        return not_compared(f"{name}: no probe has both logits and targets that are not padding"), None
    probes, logits = forward.probes, forward.logits
    given = {key: np.float64(loss) for key, loss in losses.items()}
    budgets = {key: _budget(probes[key], logits[key], forward.dtype) for key in given}

    def exact(key: str, loss: Loss) -> np.float64:
        wide, targets = logits[key].astype(np.float64), loss_inputs(probes[key])[0]
        return np.float64(loss(wide, targets, probes[key].config.pad_id))

    right = {key: exact(key, cross_entropy) for key in given}

    def judged(key: str, fault: SimulatedFault | None) -> Judged:
        value, size = right[key] if fault is None else exact(key, fault.simulate), abs(float(given[key] / right[key]))
        # If a loss is too large, such as a sum instead of a mean, its rounding errors are, too.
        grown = 1.0 if fault is None or not math.isfinite(size) else max(1.0, size)
        return Judged(gap(np.array(given[key]), np.array(value)), grown * budgets[key], key, probe=key)

    def fitted(worst: str) -> Iterator[Cause]:
        even = {key: exact(key, functools.partial(cross_entropy, label_smoothing=1.0)) for key in given}
        return _fitted(given, right, even, budgets, worst)

    faults = (*likely, *loss_faults(forward.sharding), *LOSS_FAULTS)
    found, explaining = compare_answers(name, list(given), judged, faults, fitted=fitted)
    known: list[Loss] = [fault.simulate for fault in explaining] if found.faults else [cross_entropy]
    return found, next(iter(known), None)


def _fitted(given: Numbers, right: Numbers, even: Numbers, budgets: Mapping[str, float], worst: str) -> Iterator[Cause]:
    """Yield a cause if label smoothing or a common factor explains the losses of all probes; there must be at least two
    probes. `even` has the losses for targets that are uniform over the vocabulary."""
    if len(given) < 2:
        return
    said, true, uniform, allowed = (np.array([of[key] for key in given]) for of in (given, right, even, budgets))
    at, before = list(given).index(worst), abs(given[worst] - right[worst])

    def fit(offset: np.ndarray, slope: np.ndarray) -> tuple[float, np.ndarray]:
        value = float(sum((said - offset) * slope) / sum(slope**2))
        return value, np.abs(said - offset - value * slope)

    value, left = fit(true, uniform - true)
    if (left <= allowed).all():
        says = f"the targets are smoothed by {value:.4g} (label smoothing)"
        yield Cause("loss-smoothing", says, value, float(left[at]), float(1 - left[at] / before))
    value, left = fit(0 * true, true)
    if (left <= max(1.0, abs(value)) * allowed).all():
        says = f"your losses are {value:.6g} × the reference's"
        yield Cause("loss-scale", says, value, float(left[at]), float(1 - left[at] / before))


def _budget(probe: Probe, logits: np.ndarray, dtype: str) -> float:
    """Return a loss's tolerance. The port may compute the loss from logits that are not yet rounded to its dtype."""
    arrays = {"logits": logits.astype(np.float32), "targets": loss_inputs(probe)[0]}
    oracle = function_oracle("training.loss.cross_entropy", arrays, pad_id=probe.config.pad_id)
    # The loss is a mean of differences between two logits, so its error is at most twice the error of a logit.
    return oracle.budget("result", dtype) + 2 * probe.oracle.budget("logits", dtype)


def _ask(port: BuiltPort, way: Way, key: str, probe: Probe) -> Answers:
    targets, tokens = loss_inputs(probe)
    return {f"{key}/loss": as_loss(call_port(port.forward.loss, targets, **tokens))}


LOSS = Capability(
    name="loss",
    attribute="loss",
    purpose="the loss is the mean of -log softmax(logits)[target] over all targets that are not pad_id",
    ways=(Way("loss", lambda forward: dict(forward.probes), LOSS_FAULTS, is_comparable=has_a_loss),),
    ask=_ask,
    shapes=lambda key, probe: {f"{key}/loss": ()},
    judge=lambda way, requests, answers, forward: judge_losses(
        "loss", {key: float(answers[f"{key}/loss"]) for key in requests}, forward
    )[0],
    why_not=why_no_loss,
    needs_forward=False,
    sizes=lambda probe: probe.inputs[probe.config.input_names[-1]].shape[:2],
    file="targets.safetensors",
    tensors=lambda probe, _: {"targets": targets_of(probe.config, probe.inputs)},
)
