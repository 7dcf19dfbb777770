"""The gradients that a port says, held to derivatives by the complex step.

A gradient is compared where the forward pass is right; else it is that of another function.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.derivatives import Derivatives, Loss
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence

Gradients = Mapping[str, np.ndarray]
"""By the name of the parameter, and of its shape."""


def why_no_gradients(probe: Probe, dtype: str) -> str:
    """Why none are compared, whatever a port is like; nothing if they are."""
    if dtype not in WIDE:
        return f"gradients are compared in float32 and float64, not in {dtype}"
    if probe.is_large:
        return "a forward pass for each parameter would take too long in a model of this size"
    return ""


@np.errstate(all="ignore")  # a port may say anything
def judge_gradients(gradients: Gradients, probe: Probe, loss: Loss, dtype: str) -> CapabilityResult:
    """Hold the gradients of `loss` to the reference; one that is missing or misshapen is wrong."""
    ours = _derivatives(probe, loss)
    actual = ours.along(gradients)
    budgets = {name: ours.budget(name, dtype) for name in ours.expected}
    errors = {name: gap(actual.get(name, np.empty(0)), expected) for name, expected in ours.expected.items()}
    shares = {name: share(errors[name], budgets[name]) for name in errors}
    worst = max(shares, key=lambda name: shares[name])
    wrong = [name for name in shares if shares[name] > 1]
    if not wrong:
        return CapabilityResult((ClaimResult("gradients", "agrees", errors[worst], budgets[worst], worst),))
    # Gradients flow backwards: of what is wrong, the last of the forward pass was wrong first.
    first = wrong[-1]
    causes = tuple(_causes(ours, actual, gradients, budgets, wrong))[:1]
    says = f"gradients: {len(wrong)} of {len(shares)} are wrong; {first} is the first of them on the way back"
    return CapabilityResult(
        claims=(ClaimResult("gradients", "diverges", errors[worst], budgets[worst], worst),),
        faults=(Divergence(f"gradient.{first}", errors[first], budgets[first], causes, probe=probe.name),),
        notes=(says,),
    )


@functools.cache
def _derivatives(probe: Probe, loss: Loss) -> Derivatives:
    return Derivatives(probe.config, probe.parameters, probe.inputs, loss=loss)


def _causes(
    ours: Derivatives,
    actual: Mapping[str, np.ndarray],
    gradients: Gradients,
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
