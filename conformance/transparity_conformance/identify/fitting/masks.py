"""Determine the fields of masks from the masked scores: the mask value, windows, and padding tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import MaskOrder, WindowKind
from transparity_conformance.checkpoints.tables.kinds import FULL, SLIDING, repeating
from transparity_conformance.identify.fitting.parts import Parts
from transparity_conformance.identify.fitting.structure import Attention, softmaxes
from transparity_conformance.identify.fitting.subject import FitError, RecordedCall
from transparity_conformance.identify.fitting.values.embedding import PLACES
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, digits
from transparity_conformance.identify.fitting.values.scores import Scores, scores_of
from transparity_numpy.positions.in_attention import window_mask

LOWEST = float(np.finfo(np.float32).min) / 4
"""A mask value below this number counts as −inf."""

SAME_MASK = 'with an attention_mask, "causal" and "causal-and-padding" have the same effect'


def read_masks(found: FoundFields, parts: Parts, calls: Sequence[RecordedCall]) -> None:
    """Add the fields of masks. `calls` are a call without padding, a call with padding and, if the module reads masks,
    a call with a mask."""
    weights = ((call, zip(parts.every(Attention), softmaxes(call), strict=False)) for call in calls)
    scores = [{name: scores_of(each, call.operations) for name, each in pairs} for call, pairs in weights]
    plain, padded = scores[:2]
    _read_layers(found, parts, plain)
    values = [each.masked_value for call in scores for each in call.values()]
    value = next((each for each in values if each is not None), None)
    found.fields["mask_value"], found.fields["mask_order"] = mask_fields(value, found.config().score_scale)
    if found.fields["mask_value"] in (-np.inf, 0):
        found.untold["mask_order"] = "the scale does not change a mask of 0 or −∞"
    if value is None:
        found.untold["mask_value"] = "no score is masked"
    obeys = len(calls) > 2 and difference(calls[2].output, calls[0].output) > SAME
    found.fields["padding"] = "attention-mask" if obeys else "token"
    _read_padding(found, parts, calls[1], plain, padded)
    if obeys and parts.stacks == ["decoder"]:
        found.fields["target_mask"] = "causal"
        found.untold["target_mask"] = SAME_MASK
    _read_counting(found, parts, calls[-1 if obeys else 1])


def _read_layers(found: FoundFields, parts: Parts, plain: Mapping[str, Scores]) -> None:
    """Add the windows, and the types of layers that differ in windows or positions."""
    for stack in parts.stacks:
        own = {name: each.masked for name, each in plain.items() if name.startswith(stack) and "self" in name}
        sizes = {name: window_of(masked) for name, masked in own.items()}
        windowed = {name: size for name, size in sizes.items() if size is not None}
        if windowed:
            found.fields["sliding_window"], found.fields["window_kind"] = next(iter(windowed.values()))
        elif not found.positions:
            continue
        if "layer_types" in found.fields:  # some layers are recurrences
            if len(windowed) < len(own):
                raise FitError(
                    "Some layers have a recurrence, and some attentions no window; expected one of these differences."
                )
            for fields in found.fields["layer_overrides"].values():
                fields["sliding_window"] = None
        elif len(windowed) < len(own) or found.positions:
            _read_types(found, {name: size[0] if size else None for name, size in sizes.items()})
        else:
            found.untold["layer_types"] = (
                "every attention layer has the window, so the types of layers cannot be distinguished"
            )
            found.untold["layer_overrides"] = "the value depends on layer_types"
        return
    longest = max(len(each.masked[0]) for each in plain.values())
    found.untold["sliding_window"] = f"no window of up to {longest} tokens was found"


def _read_types(found: FoundFields, windows: Mapping[str, int | None]) -> None:
    """Add `layer_types` and `layer_overrides`, given the window of each attention."""
    kinds: dict[str, dict[str, Any]] = {}
    types: list[str] = []
    for name, window in windows.items():
        facts = {**found.positions.get(name, {})} | ({"sliding_window": window} if any(windows.values()) else {})
        if facts not in kinds.values():
            usual = FULL if window is None else SLIDING
            kinds[usual if usual not in kinds else f"{usual}_{len(kinds)}"] = facts
        types.append(next(kind for kind, own in kinds.items() if own == facts))
    differ = {
        kind: {field: value for field, value in facts.items() if found.fields[field] != value}
        for kind, facts in kinds.items()
    }
    overrides = {kind: fields for kind, fields in differ.items() if fields}
    found.fields |= {"layer_types": repeating(types), "layer_overrides": overrides}


def _read_padding(
    found: FoundFields, parts: Parts, call: RecordedCall, plain: Mapping[str, Scores], padded: Mapping[str, Scores]
) -> None:
    pads: dict[str, list[int]] = {}
    for stack in [name for name, each in parts.embeddings.items() if each.reads_tokens]:
        first = next(name for name in padded if name.startswith(stack) and "self" in name)
        tokens = call.inputs[{"encoder": "source", "decoder": "target"}[stack] if len(parts.stacks) == 2 else "tokens"]
        ways = (padding_tokens(padded[first].masked, plain[first].masked, tokens, axis) for axis in (1, 2))
        pads[stack], queries = ways
        if queries and not pads[stack]:
            pads[stack] = queries
            found.remarks.append(
                f"The {stack} masks rows of scores (queries) at the token {queries[0]}, instead of columns (keys)"
            )
    every = {pad for found_pads in pads.values() for pad in found_pads}
    found.fields["target_mask"] = "causal-and-padding" if pads.get("decoder") else "causal"
    if not every and len(parts.stacks) == 2:
        found.untold["target_mask"] = "no token is masked as padding"
    if len(every) == 1:
        found.fields["pad_id"] = every.pop()
    elif "encoder" in parts.stacks and found.fields["padding"] == "token":
        found.fields["pad_id"] = None
    else:
        found.untold["pad_id"] = "no token is masked as padding"


def _read_counting(found: FoundFields, parts: Parts, call: RecordedCall) -> None:
    stack, first = next(iter(parts.embeddings.items()))
    if PLACES not in parts.embeddings[parts.last].parameters or not first.reads_tokens:
        return
    pads: list[dict[str, Any]] = [{}]
    if found.fields["padding"] == "token":
        tokens = np.unique(call.inputs["source" if len(parts.stacks) == 2 else "tokens"])
        pads = [{"pad_id": pad} for pad in (found.fields.get("pad_id"), *map(int, tokens)) if pad is not None]
    options = ({"position_count": "all"}, *({"position_count": "visible", **pad} for pad in pads))
    found.choose(options, lambda fields: call.shows(found.computed(call.inputs, f"{stack}.embedding", **fields)))


def is_causal(masked: np.ndarray) -> bool:
    """Return whether a mask, True for hidden keys, hides all later keys."""
    return bool(masked[:, np.triu(np.ones(masked.shape[1:], bool), 1)].all())


def window_of(masked: np.ndarray) -> tuple[int, WindowKind] | None:
    """Return the smallest window, or size of chunks, outside which all keys are hidden, if any."""
    length = masked.shape[1]
    kinds: tuple[WindowKind, ...] = ("chunked", "sliding")
    for size, kind in itertools.product(range(1, length), kinds):
        shown = window_mask(np.arange(length)[None], length, size, kind)[0, 0]
        if masked[:, ~shown].all() and not (kind == "chunked" and size == 1):
            return size, kind
    return None


def padding_tokens(masked: np.ndarray, plain: np.ndarray, tokens: np.ndarray, axis: int) -> list[int]:
    """Return the tokens that are masked as padding, as keys (axis 1) or as queries (axis 2)."""
    seen = np.broadcast_to(~plain.all(0), masked.shape)

    def is_hidden(token: int) -> bool:
        of_token = np.expand_dims(tokens == token, axis) & seen
        return bool(of_token.any() and masked[of_token].all() and not masked[seen & ~of_token].all())

    return [int(token) for token in np.unique(tokens) if is_hidden(token)]


def mask_fields(value: float | None, scale: float) -> tuple[float, MaskOrder]:
    """Return the number that replaces masked scores, and whether the mask comes before or after the scale. Both orders
    fit the recorded scores; prefer the order in which the number has fewer digits."""
    if value is None or value < LOWEST:
        return -np.inf, "after-scale"
    if value == 0:
        return 0.0, "after-scale"
    before, after = float(f"{value / scale:.6e}"), float(f"{value:.6e}")
    return (before, "before-scale") if digits(before) < digits(after) else (after, "after-scale")


def read_masks_of_recurrences(found: FoundFields, calls: Sequence[RecordedCall]) -> None:
    """Add the padding fields of a model without attention, by comparing the outputs of all calls."""
    reasons = {"mask_value": "no scores are masked", "mask_order": "no scores are masked"}
    found.untold |= {**reasons, "sliding_window": "no layer has scores"}
    options: list[dict[str, Any]] = [{"padding": "attention-mask"}] if "attention_mask" in calls[0].inputs else []
    pads = range(found.fields["target_vocab_size"])
    options += [{"padding": "token"}, *({"target_mask": "causal-and-padding", "pad_id": token} for token in pads)]
    found.choose(options, lambda fields: found.computes(calls, **fields))
    if "pad_id" not in found.fields:
        found.untold["pad_id"] = "no token is masked as padding"
    if found.fields.get("padding") == "attention-mask":
        found.untold["target_mask"] = SAME_MASK
