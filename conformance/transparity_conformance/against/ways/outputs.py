"""Compare outputs besides logits: greedily generated tokens, and losses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from transparity.text import describe_error
from transparity_conformance.against.probes import is_padded, telling
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.report.report import CapabilityResult, not_compared
from transparity_conformance.running.ways import LABELS

TOKENS = 6

GENERATION = Way("generate", "generated", (TOKENS,), f"{TOKENS} tokens")


def compare_generation(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the tokens that both generate after the first inputs, and after inputs with padding on the left."""
    if reason := why_not(GENERATION.method, sides):
        return not_compared(f"{GENERATION.claim}: {reason}")
    view, found, reasons = GENERATION.reference(sides.reference), dict[str, Inputs](), []
    for name, inputs in telling(probes).items():
        if any("mask" in each and not value[:, -1].all() for each, value in inputs.items()):
            continue  # no text is continued after padding
        try:
            is_clear = _is_clear(view, sides.reference, inputs)
        except Exception as error:  # noqa: BLE001 - the reference may need more than these inputs to generate
            return not_compared(f"{GENERATION.claim}: the reference raises {describe_error(error)}")
        if is_clear:
            found[name] = inputs
        else:
            reasons.append(f"{GENERATION.claim}: {name}: two tokens are equally likely, within rounding")
    compared = compare_way(GENERATION, sides, found, view) if found else CapabilityResult()
    return compared + not_compared(*reasons)


def _is_clear(view: Reference, reference: Reference, inputs: Inputs) -> bool:
    """Return whether no generated token depends on rounding.

    The reference must choose the same tokens in float64 and in its precision. Without padding, the margin of each
    choice must exceed the budget of the logits.
    """
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


LOSS = Way("loss", "loss", (), "")

IGNORED, SHARE = -100, 0.2
"""The label that PyTorch and transformers ignore, and the share of labels that are ignored."""


def compare_losses(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the losses on the first inputs, and on inputs with padding."""
    if reason := why_not(LOSS.method, sides):
        return not_compared(f"{LOSS.claim}: {reason}")
    labelled = {name: _with_labels(sides.reference, inputs) for name, inputs in telling(probes).items()}
    view = LOSS.reference(sides.reference)
    try:  # a text of one token has no next token, and so no loss
        counted = {name: inputs for name, inputs in labelled.items() if np.isfinite(view.truth(inputs)).all()}
    except Exception as error:  # noqa: BLE001 - the reference may take other labels
        return not_compared(f"{LOSS.claim}: with these labels the reference raises {describe_error(error)}")
    return compare_way(LOSS, sides, counted, view)


def _with_labels(reference: Reference, inputs: Inputs) -> Inputs:
    """Return the inputs with labels.

    Labels of padding, labels that padding predicts and some random labels are ignored.
    """
    answer, _ = reference.near(inputs)
    draw = np.random.default_rng(answer.size)
    labels = draw.integers(0, answer.shape[-1], answer.shape[:-1])
    labels[draw.random(labels.shape) < SHARE] = IGNORED
    kept = reference.kept(inputs, answer.shape)
    if kept is not None:
        labels[~kept[..., 0]] = IGNORED
        if labels.ndim > 1:  # the token before this one is padding
            labels[:, 1:][~kept[:, :-1, 0]] = IGNORED
    return {**inputs, LABELS: labels}
