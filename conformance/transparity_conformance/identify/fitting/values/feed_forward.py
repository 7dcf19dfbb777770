"""The activation of feed-forwards, and the softcap of logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transparity.config import Activation
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, is_same, settle
from transparity_conformance.identify.fitting.values.scores import cap_of
from transparity_numpy.feed_forward import ACTIVATIONS


def activation_of(ups: Sequence[np.ndarray], hidden: np.ndarray) -> tuple[Activation, bool]:
    """The activation that makes `hidden` of the results of one or two maps, and whether the second is the gate."""
    tried: list[tuple[float, str, bool]] = []
    for name, function in ACTIVATIONS.items():
        if len(ups) == 1:
            tried.append((difference(function(ups[0]), hidden), name, False))
            continue
        for swapped in (False, True):
            gate, up = ups[::-1] if swapped else ups
            tried.append((difference(function(gate) * up, hidden), name, swapped))
    error, name, swapped = min(tried)
    if error > SAME:
        known = ", ".join(ACTIVATIONS)
        raise FitError(f"The feed-forward's hidden features are made by none of {known}, gated or not.")
    return name, swapped  # type: ignore[return-value]


def head_multiplier(logits: np.ndarray, output: np.ndarray) -> float:
    """The factor of the logits; 1 for none, and where they are not multiplied alone."""
    output = output.reshape(logits.shape)
    factor = float((logits * output).sum() / (logits * logits).sum())
    if is_same(logits, output) or not is_same(factor * logits, output):
        return 1.0
    return settle(factor, lambda tried: difference(tried * logits, output))


def final_softcap(logits: np.ndarray, output: np.ndarray) -> float | None:
    """The cap by which a head bounds its logits; None for none."""
    output = output.reshape(logits.shape)
    plain = difference(logits, output)
    if plain < SAME / 1e3:
        return None

    def error(cap: float) -> float:
        return difference(cap * np.tanh(logits / cap), output)

    cap = cap_of(error, output)
    if error(cap) > SAME:
        raise FitError("What lies between the last linear map and the output is no softcap; expected logits.")
    return settle(cap, error)
