"""What a port offers beside its forward pass, held to the reference: its loss, its gradients and its generation.

The loss is a segment of its own: the reference takes the port's own logits, so that wrong logits are no wrong loss. A
gradient is compared where the forward pass is right; else it is that of another function.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.loss import cross_entropy
from transparity_conformance.bench import as_numbers, function_oracle
from transparity_conformance.claims import WIDE
from transparity_conformance.decoding import Build, decode
from transparity_conformance.derivatives import Derivatives, Loss, targets_of
from transparity_conformance.evidence import share
from transparity_conformance.mistakes.loss import LOSSES, smoothed
from transparity_conformance.probes import Probe
from transparity_conformance.stepping import compare_steps
from transparity_conformance.verdict import Cause, Fault, Held, Report
from transparity_conformance.walk import gap
from transparity_conformance.words import told

OFFERS = ("loss", "loss_and_gradients", "generate", "step")
"""`forward.loss(targets, **tokens)`; `forward.loss_and_gradients(targets, **tokens)` → the loss and a dict of arrays
under the parameters' names; `forward.generate(prompt, max_new_tokens, source=…)` → the prompt and what follows; and
`forward.step(tokens, cache, source=…)` → the logits and the cache, None before the first step, which has the source."""

Logits = Mapping[str, np.ndarray]
"""What the port said, by probe."""


@dataclass
class Findings:
    """What became of everything that was offered."""

    claims: list[Held] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def compare_offers(
    build: Build,
    forward: Callable[..., Any],
    probes: Mapping[str, Probe],
    logits: Logits,
    dtype: str,
    *,
    is_right: bool,
) -> Findings:
    """Hold what `forward` offers to the reference; `is_right` says whether its forward pass is. `build` makes another,
    of other parameters."""
    found = Findings()
    offered = [name for name in OFFERS if callable(getattr(forward, name, None))]
    found.not_compared += [f"{name}: the port does not offer it" for name in OFFERS if name not in offered]
    if "loss" in offered:
        _compare_losses(found, "loss", lambda probe: _loss(forward.loss, probe), probes, logits, dtype)  # type: ignore[attr-defined]
    if "loss_and_gradients" in offered:
        _compare_gradients(found, forward.loss_and_gradients, probes, logits, dtype, is_right=is_right)  # type: ignore[attr-defined]
    if "generate" in offered:
        _compare_generation(found, build, next(iter(probes.values())), dtype, is_right=is_right)
    if "step" in offered:
        _compare_steps(found, forward.step, next(iter(probes.values())), dtype, is_right=is_right)  # type: ignore[attr-defined]
    return found


def with_offers(report: Report, found: Findings) -> Report:
    """The report on the forward pass, and what was found beside it."""
    faults = (*report.faults, *found.faults)
    first = report.first_divergence or next((fault.where for fault in found.faults), None)
    return dataclasses.replace(
        report,
        verdict="diverges" if found.faults else report.verdict,
        first_divergence=first,
        faults=faults,
        claims=(*report.claims, *found.claims),
        not_compared=(*found.not_compared, *report.not_compared),
        notes=(*report.notes, *found.notes),
    )


def _arguments(probe: Probe) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    targets = targets_of(probe.config, probe.inputs).astype(np.int64)
    return targets, {name: np.array(tokens, np.int64) for name, tokens in probe.inputs.items()}


def _loss(loss: Callable[..., Any], probe: Probe) -> float:
    targets, tokens = _arguments(probe)
    return _number(loss(targets, **tokens))


def _number(value: Any) -> float:
    array = as_numbers(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise TypeError(f"a loss of the shape {array.shape} and dtype {array.dtype}, expected one number")
    return float(array.reshape(()))


def _compare_losses(
    found: Findings,
    name: str,
    loss_of: Callable[[Probe], float],
    probes: Mapping[str, Probe],
    logits: Logits,
    dtype: str,
) -> Loss | None:
    """The port's losses of all probes; which loss it computes, or None if that cannot be told."""
    said: dict[str, float] = {}
    for key, probe in probes.items():
        if key in logits and logits[key].shape == probe.oracle.expected["logits"].shape and _counts(probe):
            try:
                said[key] = loss_of(probe)
            except Exception as error:  # noqa: BLE001 - whatever a stranger's method does with what it is given
                found.not_compared.append(f"{name}: raised {told(error)} on the probe {key}")
                return None
    if not said:
        found.not_compared.append(f"{name}: no probe has logits and a target that counts")
        return None
    budgets = {key: _budget(probes[key], logits[key], dtype) for key in said}

    def errors(loss: Loss) -> dict[str, float]:
        with np.errstate(all="ignore"):
            return {key: gap(np.array(said[key]), _exactly(loss, probes[key], logits[key])) for key in said}

    off = errors(cross_entropy)
    worst = max(said, key=lambda key: share(off[key], budgets[key]))
    is_right = share(off[worst], budgets[worst]) <= 1
    found.claims.append(Held(name, "agrees" if is_right else "diverges", off[worst], budgets[worst], worst))
    if is_right:
        return cross_entropy

    with np.errstate(all="ignore"):
        right = {key: float(_exactly(cross_entropy, probes[key], logits[key])) for key in said}
        # A loss rounds by its own size: a sum by more than a mean.
        grown = {key: max(1.0, abs(said[key] / right[key])) * budgets[key] for key in said}
        left = {mistake: errors(mistake.loss) for mistake in LOSSES}
        explaining = [mistake for mistake in LOSSES if all(share(left[mistake][key], grown[key]) <= 1 for key in said)]
        causes: tuple[Cause, ...]
        if explaining:
            first, residual = explaining[0], left[explaining[0]][worst]
            causes = (Cause(first.id, first.says, None, residual, 1 - residual / off[worst]),)
        else:
            even = {key: float(_exactly(smoothed, probes[key], logits[key])) for key in said}
            causes = tuple(_fitted(said, right, even, budgets, worst))[:1]
    rivals = tuple(dict.fromkeys(m.id for m in explaining[1:] if m.id != explaining[0].id))
    found.faults.append(Fault(name, off[worst], budgets[worst], causes, rivals, probe=worst))
    return explaining[0].loss if explaining else None


def _fitted(
    said: Mapping[str, float],
    right: Mapping[str, float],
    even: Mapping[str, float],
    budgets: Mapping[str, float],
    worst: str,
) -> Iterator[Cause]:
    """One factor, or one share of label smoothing, for all probes; of one probe alone it would say nothing. `even` are
    the losses where every token is aimed at alike."""
    if len(said) < 2:
        return
    before = abs(said[worst] - right[worst])
    toward = {key: even[key] - right[key] for key in said}
    smoothing = sum((said[key] - right[key]) * toward[key] for key in said) / sum(toward[key] ** 2 for key in said)
    left = {key: abs(said[key] - right[key] - smoothing * toward[key]) for key in said}
    if all(left[key] <= budgets[key] for key in said):
        says = f"the targets are smoothed by {smoothing:.4g} (label smoothing)"
        yield Cause("loss-smoothing", says, smoothing, left[worst], 1 - left[worst] / before)
    factor = sum(said[key] * right[key] for key in said) / sum(right[key] ** 2 for key in said)
    left = {key: abs(said[key] - factor * right[key]) for key in said}
    if all(left[key] <= max(1.0, abs(factor)) * budgets[key] for key in said):
        says = f"your losses are {factor:.6g} × ours"
        yield Cause("loss-scale", says, factor, left[worst], 1 - left[worst] / before)


def _counts(probe: Probe) -> bool:
    targets, pad_id = targets_of(probe.config, probe.inputs), probe.config.pad_id
    return pad_id is None or bool((targets != pad_id).any())


def _exactly(loss: Loss, probe: Probe, logits: np.ndarray) -> np.ndarray:
    targets, _ = _arguments(probe)
    return np.asarray(loss(logits.astype(np.float64), targets, probe.config.pad_id))


def _budget(probe: Probe, logits: np.ndarray, dtype: str) -> float:
    """Of a loss that may have been taken from logits before they were rounded."""
    targets, _ = _arguments(probe)
    arrays = {"logits": logits.astype(np.float32), "targets": targets}
    oracle = function_oracle("loss.cross_entropy", arrays, pad_id=probe.config.pad_id)
    # A mean of differences of logits is no further off than two logits are.
    return oracle.budget("result", dtype) + 2 * probe.oracle.budget("logits", dtype)


def _compare_gradients(
    found: Findings,
    loss_and_gradients: Callable[..., Any],
    probes: Mapping[str, Probe],
    logits: Logits,
    dtype: str,
    *,
    is_right: bool,
) -> None:
    probe = next(iter(probes.values()))
    if reason := _not_comparable(probe, dtype, is_right=is_right):
        found.not_compared.append(f"loss_and_gradients: {reason}")
        return
    targets, tokens = _arguments(probe)
    try:
        value, said = loss_and_gradients(targets, **tokens)
        gradients = {str(name): as_numbers(gradient).astype(np.float64) for name, gradient in dict(said).items()}
    except Exception as error:  # noqa: BLE001 - as above
        found.not_compared.append(f"loss_and_gradients: raised {told(error)}")
        return
    loss = _compare_losses(found, "loss_and_gradients", lambda _: _number(value), {probe.name: probe}, logits, dtype)
    with np.errstate(all="ignore"):
        ours = _derivatives(probe, loss or cross_entropy)
        _judge_gradients(found, ours, gradients, probe, dtype)


@functools.cache
def _derivatives(probe: Probe, loss: Loss) -> Derivatives:
    return Derivatives(probe.config, probe.parameters, probe.inputs, loss=loss)


def _compare_generation(found: Findings, build: Build, probe: Probe, dtype: str, *, is_right: bool) -> None:
    reason = "" if is_right else "the forward pass diverges, and its tokens with it"
    reason = reason if probe.config.has_decoder else "a lone encoder generates nothing"
    reason = "so many forward passes would take too long in a model of this size" if probe.is_large else reason
    if reason:
        found.not_compared.append(f"generate: {reason}")
        return
    try:
        decoded = decode(build, probe, dtype)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's method does with what it is given
        found.not_compared.append(f"generate: raised {told(error)}")
        return
    found.claims.append(decoded.claim)
    found.faults += [decoded.fault] if decoded.fault else []
    found.notes += decoded.notes


def _compare_steps(found: Findings, step: Callable[..., Any], probe: Probe, dtype: str, *, is_right: bool) -> None:
    reason = "" if is_right else "the forward pass diverges, and what is cached with it"
    reason = reason if probe.config.has_decoder else "a lone encoder generates nothing"
    reason = reason if probe.config.hides_wholly else "this mask hides nothing, so what is cached is never right"
    if reason:
        found.not_compared.append(f"step: {reason}")
        return
    try:
        claim, fault = compare_steps(step, probe, dtype)
    except Exception as error:  # noqa: BLE001 - whatever a stranger's method does with what it is given
        found.not_compared.append(f"step: raised {told(error)}")
        return
    found.claims.append(claim)
    found.faults += [fault] if fault else []


def _not_comparable(probe: Probe, dtype: str, *, is_right: bool) -> str:
    if not is_right:
        return "the forward pass diverges, so its gradients are another function's"
    if dtype not in WIDE:
        return f"gradients are compared in float32 and float64, not in {dtype}"
    if probe.is_large:
        return "a forward pass for each parameter would take too long in a model of this size"
    return ""


def _judge_gradients(
    found: Findings, ours: Derivatives, gradients: Mapping[str, np.ndarray], probe: Probe, dtype: str
) -> None:
    actual = ours.along(gradients)
    budgets = {name: ours.budget(name, dtype) for name in ours.expected}
    errors = {name: gap(actual.get(name, np.empty(0)), expected) for name, expected in ours.expected.items()}
    shares = {name: share(errors[name], budgets[name]) for name in errors}
    worst = max(shares, key=lambda name: shares[name])
    verdict = "agrees" if shares[worst] <= 1 else "diverges"
    found.claims.append(Held("gradients", verdict, errors[worst], budgets[worst], worst))  # type: ignore[arg-type]
    wrong = [name for name in shares if shares[name] > 1]
    if not wrong:
        return
    # Gradients flow backwards: of what is wrong, the last of the forward pass was wrong first.
    first = wrong[-1]
    causes = tuple(_causes_of_gradients(ours, actual, gradients, budgets, wrong))[:1]
    found.faults.append(Fault(f"gradient.{first}", errors[first], budgets[first], causes, probe=probe.name))
    found.notes.append(
        f"gradients: {len(wrong)} of {len(shares)} are wrong; {first} is the first of them on the way back"
    )


def _causes_of_gradients(
    ours: Derivatives,
    actual: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    budgets: Mapping[str, float],
    wrong: list[str],
) -> Iterator[Cause]:
    absent = [name for name in wrong if name not in gradients or not gradients[name].any()]
    if absent == wrong:
        none = f"no gradient reaches {wrong[-1]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else "")
        yield Cause("gradient-missing", none, None, 0.0, 1.0)
    if set(actual) == set(ours.expected):
        said = np.concatenate([actual[name] for name in ours.expected])
        right = np.concatenate([ours.expected[name] for name in ours.expected])
        factor = float(said @ right / (right @ right))
        left = {name: gap(actual[name], factor * ours.expected[name]) for name in ours.expected}
        if math.isfinite(factor) and all(left[name] <= max(1.0, abs(factor)) * budgets[name] for name in left):
            of_what = _named_factor(ours, factor)
            says = f"your gradients are {factor:.6g} × ours{of_what}"
            explained = 1 - float(np.abs(said - factor * right).max() / np.abs(said - right).max())
            yield Cause("gradient-scale", says, factor, max(left.values()), explained)


def _named_factor(ours: Derivatives, factor: float) -> str:
    targets, pad_id = ours.targets, ours.config.pad_id
    counted = int((targets != pad_id).sum()) if pad_id is not None else targets.size
    names = {
        counted: "the sum over the targets, not their mean",
        targets.size: "the number of positions",
        len(targets): "the number of rows",
        counted / targets.size: "divided by all positions, padding too",
        -1: "the sign is turned",
    }
    return next((f": {says}" for number, says in names.items() if abs(factor / number - 1) < 1e-3), "")
