"""Greedy generation: the tokens that both add to a prompt, up to a near tie."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from transparity_conformance.against.probes import is_padded, telling
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.text import describe_error

TOKENS = 6

WAY = Way("generate", "generated", (TOKENS,), f"{TOKENS} tokens")


def compare_generation(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the tokens after the first inputs, and after the first with padding on the left."""
    if reason := why_not(WAY.method, sides):
        return not_compared(f"{WAY.claim}: {reason}")
    view, found, reasons = WAY.reference(sides.reference), dict[str, Inputs](), []
    for name in telling(probes):
        try:
            is_clear = _is_clear(view, sides.reference, probes[name])
        except Exception as error:  # noqa: BLE001 - the reference may need more than these inputs to generate
            return not_compared(f"{WAY.claim}: the reference raises {describe_error(error)}")
        if is_clear:
            found[name] = probes[name]
        else:
            reasons.append(f"{WAY.claim}: {name}: two tokens are as likely as each other, within rounding")
    compared = compare_way(WAY, sides, found, view) if found else CapabilityResult()
    return compared + not_compared(*reasons)


def _is_clear(view: Reference, reference: Reference, inputs: Inputs) -> bool:
    """Return whether rounding decides no token: the reference chooses the same in float64 and in the precision, and
    without padding by more than the budget of its logits."""
    tokens, _ = view.near(inputs)
    if not np.array_equal(tokens, view.answer_of(view.rounded, inputs)):
        return False
    content = next(iter(inputs))
    if is_padded(inputs) or tokens.ndim != 2:
        return True
    prompt = inputs[content].shape[1]
    whole = {content: tokens.astype(np.int64)}
    logits, budget = reference.near(whole)
    ordered = np.sort(logits[:, prompt - 1 : -1], axis=-1)
    return bool((ordered[..., -1] - ordered[..., -2]).min() > 2 * budget)
