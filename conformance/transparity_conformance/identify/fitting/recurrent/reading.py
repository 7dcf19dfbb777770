"""Determine the fields of recurrences, and which layers of a model have a recurrence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transparity.config import FULL, repeating
from transparity_conformance.identify.fitting.recurrent.mixers import Recurrence, Taken, taken_apart
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, RecordedCall
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.numbers import is_same, settled

LINEAR = "linear_attention"
"""The kind of a layer with a recurrence, named as in Qwen3-Next."""


def read_recurrences(
    found: FoundFields,
    subject: FittedModel,
    heard: RecordedCall,
    named: Sequence[tuple[str, Recurrence]],
    mixers: Sequence[object],
) -> None:
    """Add the fields and parameters of recurrences, if there are any.

    Args:
        found, subject: the known fields, and the module to fit.
        heard: the recorded call.
        named: the recurrences by the reference's names.
        mixers: the mixer of each layer: a recurrence, or attention.
    """
    if not named:
        return
    every: list[tuple[str, Taken]] = []
    for name, each in named:
        every.append((name, taken_apart(found, each, heard.operations, subject.values)))
        found.used |= every[-1][1].used
    first = every[0][1].fields
    for name, taken in every[1:]:
        differ = [field for field in first if field != "recurrent_bias" and taken.fields[field] != first[field]]
        if differ:
            raise FitError(
                f"{name} has {differ[0]} {taken.fields[differ[0]]}, but the first recurrence has {first[differ[0]]}; "
                "expected the same value in all recurrences."
            )
    has_bias = any(taken.fields["recurrent_bias"] for _, taken in every)
    found.fields |= {**first, "recurrent_bias": has_bias, **_bounds(found, [taken for _, taken in every])}
    for name, taken in every:
        found.parameters |= {f"{name}.{leaf}": value for leaf, value in taken.parameters.items()}
        for role, linear in taken.linears.items():
            found.put(f"{name}.{role}", linear, bias=has_bias)
    _kinds(found, mixers, first["mixer"])


def _bounds(found: FoundFields, every: list[Taken]) -> dict[str, Any]:
    """Return the bounds of the time step; a bound is known only if several time steps would exceed it."""
    step = np.concatenate([each.rates.step.ravel() for each in every])
    bounded = np.concatenate([each.rates.bounded.ravel() for each in every])
    fields: dict[str, Any] = {"time_step_min": 0.0, "time_step_max": None}
    for name, bound, is_beyond in (
        ("time_step_min", float(bounded.min()), step < bounded.min() * (1 - 1e-3)),
        ("time_step_max", float(bounded.max()), step > bounded.max() * (1 + 1e-3)),
    ):
        if is_beyond.any():
            fields[name] = settled(bound)
        else:
            side = "short" if name == "time_step_min" else "long"
            found.untold[name] = f"no time step is {side} enough to reach a bound"
    return fields


def _kinds(found: FoundFields, mixers: Sequence[object], mixer: str) -> None:
    types = [LINEAR if isinstance(each, Recurrence) else FULL for each in mixers]
    if FULL not in types:
        return
    if "layer_types" in found.fields:
        raise FitError("Layers differ both in their windows and in having a recurrence; expected only one of these.")
    unwindowed = {"sliding_window": None} if found.fields.get("sliding_window") is not None else {}
    found.fields |= {
        "mixer": "attention",
        "layer_types": repeating(types),
        "layer_overrides": {LINEAR: {"mixer": mixer, **unwindowed}},
    }


def read_masks_of_recurrences(found: FoundFields, subject: FittedModel, calls: Sequence[RecordedCall]) -> None:
    """Add the padding fields of a model without attention, by comparing the outputs of all calls."""
    reasons = {"mask_value": "no scores are masked", "mask_order": "no scores are masked"}
    found.untold |= {**reasons, "sliding_window": "no layer has scores"}
    options: list[dict[str, Any]] = [{"padding": "attention-mask"}] if "attention_mask" in subject.names else []
    pads = [
        {"target_mask": "causal-and-padding", "pad_id": token} for token in range(found.fields["target_vocab_size"])
    ]
    for fields in (*options, {"padding": "token"}, *pads):
        if all(is_same(found.computed(each.inputs, "logits", **fields), each.output) for each in calls):
            found.take(fields)
            break
    if "pad_id" not in found.fields:
        found.untold["pad_id"] = "no token is masked as padding"
    if found.fields.get("padding") == "attention-mask":
        found.untold["target_mask"] = "with an attention_mask, both values mask the same tokens"
