"""The loss that both compute of the same labels, some of which count for nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from transparity_conformance.against.probes import telling
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.ways.way import Sides, Way, compare_way, why_not
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.text import describe_error
from transparity_conformance.running.ways import LABELS

WAY = Way("loss", "loss", (), "")

IGNORED, SHARE = -100, 0.2
"""The label that counts for nothing in PyTorch and transformers, and how many labels are it."""


def compare_losses(sides: Sides, probes: Mapping[str, Inputs]) -> CapabilityResult:
    """Compare the losses of the first inputs, and of those with padding."""
    if reason := why_not(WAY.method, sides):
        return not_compared(f"{WAY.claim}: {reason}")
    labelled = {name: _with_labels(sides.reference, inputs) for name, inputs in telling(probes).items()}
    view = WAY.reference(sides.reference)
    try:  # a text of one token has no next one, and so no loss
        counted = {name: inputs for name, inputs in labelled.items() if np.isfinite(view.near(inputs)[0]).all()}
    except Exception as error:  # noqa: BLE001 - the reference may take other labels
        return not_compared(f"{WAY.claim}: with these labels the reference raises {describe_error(error)}")
    return compare_way(WAY, sides, counted, view)


def _with_labels(reference: Reference, inputs: Inputs) -> Inputs:
    """Return the inputs with a label for each row of the answer; padding and some others are ignored."""
    answer, _ = reference.near(inputs)
    draw = np.random.default_rng(answer.size)
    labels = draw.integers(0, answer.shape[-1], answer.shape[:-1])
    labels[draw.random(labels.shape) < SHARE] = IGNORED
    kept = reference.kept(inputs, answer.shape)
    if kept is not None:
        labels[~kept[..., 0]] = IGNORED
    return {**inputs, LABELS: labels}
