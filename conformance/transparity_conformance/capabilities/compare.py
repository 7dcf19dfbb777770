"""What a port offers beside its forward pass, asked for and held to the reference: its loss, its gradients, its
generation, its steps with a cache and its training.

Here the port is called, and may do anything; what it answers is judged elsewhere, as arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.generation import Build, compare_beams, compare_generation
from transparity_conformance.capabilities.gradients import judge_gradients, why_no_gradients
from transparity_conformance.capabilities.incremental_decoding import judge_steps, stepped, why_no_steps
from transparity_conformance.capabilities.loss import Logits, judge_losses, with_a_loss
from transparity_conformance.capabilities.training import compare_training
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.derivatives import Loss, targets_of
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.report.formatting import describe_error
from transparity_numpy.loss import cross_entropy

OFFERS = ("loss", "loss_and_gradients", "generate", "beam_search", "step", "train")
"""`forward.loss(targets, **tokens)`; `forward.loss_and_gradients(targets, **tokens)` → the loss and a dict of arrays
under the parameters' names; `forward.generate(prompt, max_new_tokens, source=…)` → the prompt and what follows, drawn
if it takes `uniforms` and `sampling`, by row if it takes `lengths`; `forward.beam_search(prompt, max_new_tokens, beams,
source=…)` → the same and its scores, by a `length_penalty` if it takes one; `forward.step(tokens, cache, source=…)` →
the logits and the cache, None before the first step, which has the source; and `forward.train(batches, training)` → the
losses before each step, and a dict of what the parameters have become."""


LOSSES = ("loss", "loss_and_gradients", "train")
"""Those that need logits."""


def offered_by(forward: Callable[..., Any]) -> list[str]:
    """Those of `OFFERS` that a port has."""
    return [name for name in OFFERS if callable(getattr(forward, name, None))]


def compare_offers(
    build: Build,
    forward: Callable[..., Any],
    probes: Mapping[str, Probe],
    logits: Logits,
    dtype: str,
    *,
    is_right: bool,
) -> CapabilityResult:
    """Hold what `forward` offers to the reference; `is_right` says whether its forward pass is. `build` makes another,
    of other parameters."""
    offered = offered_by(forward)
    found = not_compared(*(f"{name}: the port does not offer it" for name in OFFERS if name not in offered))
    first = next(iter(probes.values()))
    if first.config.head != "logits":
        without = [name for name in LOSSES if name in offered]
        found += not_compared(*(f"{name}: the head is {first.config.head!r}, which has no loss" for name in without))
        offered = [name for name in offered if name not in LOSSES]
    if "loss" in offered:
        found += _compare_losses("loss", lambda probe: _loss(forward.loss, probe), probes, logits, dtype)[0]  # type: ignore[attr-defined]
    if "loss_and_gradients" in offered:
        found += _compare_gradients(forward.loss_and_gradients, first, logits, dtype, is_right=is_right)  # type: ignore[attr-defined]
    if generating := [name for name in ("generate", "beam_search") if name in offered]:
        found += _compare_generation(build, forward, generating, first, dtype, is_right=is_right)
    if "step" in offered:
        found += _compare_steps(forward.step, first, dtype, is_right=is_right)  # type: ignore[attr-defined]
    if "train" in offered:
        found += _compare_training(build, first.config, dtype, is_right=is_right)
    return found


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
    name: str,
    loss_of: Callable[[Probe], float],
    probes: Mapping[str, Probe],
    logits: Logits,
    dtype: str,
) -> tuple[CapabilityResult, Loss | None]:
    """The port's losses of all probes; which loss it computes, or None if that cannot be told."""
    said: dict[str, float] = {}
    for key in with_a_loss(probes, logits):
        try:
            said[key] = loss_of(probes[key])
        except Exception as error:  # noqa: BLE001 - whatever a stranger's method does with what it is given
            return not_compared(f"{name}: raised {describe_error(error)} on the probe {key}"), None
    return judge_losses(name, said, probes, logits, dtype)


def _compare_gradients(
    loss_and_gradients: Callable[..., Any], probe: Probe, logits: Logits, dtype: str, *, is_right: bool
) -> CapabilityResult:
    reason = "" if is_right else "the forward pass diverges, so its gradients are another function's"
    if reason := reason or why_no_gradients(probe, dtype):
        return not_compared(f"loss_and_gradients: {reason}")
    targets, tokens = _arguments(probe)
    try:
        value, said = loss_and_gradients(targets, **tokens)
        gradients = {str(name): as_numbers(gradient).astype(np.float64) for name, gradient in dict(said).items()}
    except Exception as error:  # noqa: BLE001 - as above
        return not_compared(f"loss_and_gradients: raised {describe_error(error)}")
    probes = {probe.name: probe}
    found, loss = _compare_losses("loss_and_gradients", lambda _: _number(value), probes, logits, dtype)
    return found + judge_gradients(gradients, probe, loss or cross_entropy, dtype)


def _compare_generation(
    build: Build, forward: Callable[..., Any], offered: Sequence[str], probe: Probe, dtype: str, *, is_right: bool
) -> CapabilityResult:
    reason = "" if is_right else "the forward pass diverges, and its tokens with it"
    reason = reason if probe.config.has_decoder else "a lone encoder generates nothing"
    reason = "so many forward passes would take too long in a model of this size" if probe.is_large else reason
    if reason:
        return not_compared(*(f"{name}: {reason}" for name in offered))
    found = CapabilityResult()
    if "generate" in offered:
        found += compare_generation(build, forward.generate, probe, dtype)  # type: ignore[attr-defined]
    if "beam_search" in offered:
        found += compare_beams(build, forward.beam_search, probe, dtype)  # type: ignore[attr-defined]
    return found


def _compare_steps(step: Callable[..., Any], probe: Probe, dtype: str, *, is_right: bool) -> CapabilityResult:
    reason = "" if is_right else "the forward pass diverges, and what is cached with it"
    if reason := why_no_steps(probe.config) or reason:
        return not_compared(f"step: {reason}")
    try:
        said = stepped(step, probe)
    except Exception as error:  # noqa: BLE001 - as above
        return not_compared(f"step: raised {describe_error(error)}")
    return judge_steps(said, probe, dtype)


def _compare_training(build: Build, config: TransformerConfig, dtype: str, *, is_right: bool) -> CapabilityResult:
    reason = "" if dtype in WIDE else f"training is compared in float32 and float64, not in {dtype}"
    reason = reason if is_right else "the forward pass diverges, and its gradients with it"
    if reason:
        return not_compared(f"train: {reason}")
    try:
        return compare_training(build, config, dtype)
    except Exception as error:  # noqa: BLE001 - as above
        return not_compared(f"train: raised {describe_error(error)}")
