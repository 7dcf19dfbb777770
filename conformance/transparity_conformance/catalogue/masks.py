"""Faults between scores and attention weights: the mask, the value of masked scores, sinks and the softmax axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import MaskOrder, TransformerConfig, WindowKind
from transparity_conformance.catalogue.fault import Fault, Patch, Settings, WalkState, fault, made
from transparity_conformance.catalogue.sites import Value, has_padding
from transparity_conformance.oracle.undetermined import MaskParts, own_config, right_mask, split
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.mixers.attention import attention_weights, repeat_heads


def layer_of(site: str) -> int:
    return int(site.split(".")[2])


def weighed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return attention weights with another mask or softmax; return the values of other taps unchanged."""
    if not site.endswith(".weights"):
        return value
    scores, mask = scores_at(state, site), np.broadcast_to(MaskParts(state, site).seen(settings), value.shape)
    axis, hidden = settings.get("axis", -1), _masked_score(settings, state.config)
    sinks = sinks_at(state, site)
    if "behind" in settings:
        weights = attention_weights(scores, np.ones_like(mask), hidden, sinks) * mask
        return weights / weights.sum(axis, keepdims=True) if settings["behind"] == "normalised" else weights
    if "added" in settings:
        shown = scores + np.where(mask, 0.0, settings["added"]).astype(value.dtype)
        if settings.get("rounded"):  # in float32, the sum of a score and a large number loses the score
            shown = shown.astype(np.float32).astype(value.dtype)
        return attention_weights(shown, np.ones_like(mask), hidden, sinks)
    if axis == -1:
        weights = attention_weights(scores, mask, hidden, sinks)
        if "blind" not in settings:
            return weights
        blind = BLIND[settings["blind"]](scores)
        return np.where(mask.any(-1, keepdims=True), weights, blind)
    lowest = float(np.finfo(value.dtype).min) / 2
    shown = np.where(mask, scores, value.dtype.type(max(hidden, lowest)))
    return np.moveaxis(softmax(np.moveaxis(shown, axis, -1)), -1, axis)


_masked = partial(fault, formula=weighed)


def _masked_score(settings: Settings, config: TransformerConfig) -> float:
    masked, given = config.masked_score, config.mask_value
    if "turned" in settings:
        order: MaskOrder = "after-scale" if config.mask_order == "before-scale" else "before-scale"
        masked = dataclasses.replace(config, mask_order=order).masked_score
    if "hidden" in settings:
        scale = masked / given if given and math.isfinite(given) else 1.0
        masked = settings["hidden"] * scale
    return masked


def sinks_at(state: WalkState, site: str) -> Value | None:
    return state.parameters.get(site.replace(".weights", ".sinks"))


BLIND: dict[str, Callable[[Value], Any]] = {
    "NaN": lambda scores: np.nan,  # a softmax over −∞
    "zero": lambda scores: 0.0,  # fused attention of PyTorch
    "by scores": softmax,
}
"""Functions from unmasked scores to the weights of a query without a visible key."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap == "context" and not config.mask_is_exact:
        yield from conventions(config, site)
    if tap != "weights":
        return
    pads = has_padding(config, site)
    causal = site.startswith("decoder") and sublayer == "self_attention"
    masks_padding = pads and (not causal or config.decoder_mask == "causal-and-padding")
    if sublayer == "self_attention" and not causal:
        yield from made("masks of the whole sequence", config, weighed)
    if causal or pads:
        yield from made("masks", config, weighed)
        yield from _value_faults(config)
    if causal:
        yield from made("causal masks", config, weighed)
    if causal and masks_padding:
        yield from made("causal masks of padding", config, weighed)
    if pads:
        yield from made("masks of padding" if masks_padding else "masks with visible padding", config, weighed)
    if sublayer == "self_attention":
        yield from _window_faults(config, site, causal=causal)
    yield from made("softmax axes", config, weighed)
    if (pads or causal) and not config.mask_is_exact:
        yield from conventions(config, site)


def _value_faults(config: TransformerConfig) -> Iterator[Fault]:
    for value in (0.0, -10.0, -1e-20, -1e-9, -1.0, -100.0, -1e4, -1e9, -math.inf):
        if value != config.mask_value:
            description = f"masked scores are replaced by {value:g} instead of {config.mask_value:g}"
            yield _masked("mask-value", f"{value:g}", value=value, hidden=value, says=description)
    for value in (config.mask_value, -1e9, -10.0, -1.0, 1.0):
        if math.isfinite(value):
            yield _masked("mask-value", "{value:g} added", value=value, added=value, words={"value": value})


def _window_faults(config: TransformerConfig, site: str, *, causal: bool) -> Iterator[Fault]:
    own = own_config(config, site)
    if own.sliding_window is not None:
        yield from _size_faults(own, own.sliding_window)
        which = "sliding window is" if own.window_kind == "sliding" else "chunks are"
        yield from made("windows" if causal else "windows in both directions", own, weighed, which=which)
    kinds = config.layer_kinds
    if len({_window(each) for each in kinds.values()}) > 1:
        yield _windowed("exchanged", _of_the_next_kind)
    for kind, other in kinds.items():
        if other.sliding_window is not None and _window(other) != _window(own):
            yield _windowed("{kind}", partial(_of_kind, kind), kind=kind)


SIZES: dict[WindowKind, str] = {
    "sliding": "a position sees the last {} positions, itself included, instead of {}",
    "chunked": "chunks have {} positions instead of {}",
}
"""Descriptions of a wrong size of a window."""


def _size_faults(own: TransformerConfig, window: int) -> Iterator[Fault]:
    for more in (1, -1):
        larger = lambda m, more=more: int(m.layer_window or 0) + more
        says = SIZES[own.window_kind].format(window + more, window)
        yield _masked("window-size", f"{more:+d}", value=window + more, window=larger, says=says)


def _windowed(variant: str, of: Callable[[MaskParts], Window], **words: str) -> Fault:
    settings: dict[str, Any] = {"window": lambda m: of(m)[0], "window_kind": lambda m: of(m)[1]}
    return _masked("window-layers", variant, words=words, **settings)


Window = tuple[int | None, WindowKind]
"""Size and kind; a layer without a window counts as `sliding`."""


def _window(own: TransformerConfig) -> Window:
    return own.sliding_window, "sliding" if own.sliding_window is None else own.window_kind


def _of_kind(kind: str, m: MaskParts) -> Window:
    return _window(m.config.layer_kinds[kind])


def _of_the_next_kind(m: MaskParts) -> Window:
    types, layer = m.config.layer_types, layer_of(m.site)
    own = _window(own_config(m.config, m.site))
    others = (_of_kind(types[(layer + step) % len(types)], m) for step in range(len(types)))
    return next(window for window in others if window != own)


def hidden_row(blind: Patch, state: WalkState, site: str, value: Value) -> Value:
    """Return attention weights in which the function `blind` computes the weights of queries without a visible key."""
    wrong = np.asarray(blind(state, site, value), value.dtype)
    return np.where(right_mask(state, site).any(-1, keepdims=True), value, wrong)


def conventions(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """Yield different treatments of queries without a visible key. If masked keys have the weight zero, each treatment
    is a convention."""
    _, sublayer, tap = split(site)
    if tap == "context" and sublayer.endswith("attention"):
        yield from made("conventions of contexts", config, weighed)
    if tap != "weights":
        return
    yield from made("conventions", config, weighed)
    if site.startswith("decoder") and sublayer == "self_attention":
        yield from made("conventions of causal masks", config, weighed)


def scores_at(state: WalkState, site: str) -> Value:
    return state.taps[site.replace(".weights", ".scores")]


def zero_context(state: WalkState, site: str, value: Value) -> Value:
    weights, scope = site.replace(".context", ".weights"), site.rpartition(".")[0]
    sees = right_mask(state, weights).any(-1, keepdims=True)
    values = repeat_heads(state.taps[f"{scope}.value"], state.config.num_heads)
    heads = np.where(sees, state.taps[weights] @ values, value.dtype.type(0))
    batch, _, length, _ = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, -1)


def equal_past(state: WalkState, site: str, value: Value) -> Value:
    past = MaskParts(state, site).past
    return past / past.sum(-1, keepdims=True)


def sink_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention") or tap != "weights":
        return
    yield from made("sinks" if config.attention_sinks else "weights without sinks", config, sunk)


def with_one_more(state: WalkState, site: str, value: Value) -> Value:
    """Return weights of a softmax whose denominator has an additional 1."""
    largest = value.argmax(axis=-1, keepdims=True)
    score, weight = (np.take_along_axis(each, largest, -1) for each in (scores_at(state, site), value))
    return value / (1 + weight * np.exp(-score))


def sunk(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return attention weights with the `sinks` from `settings`. Without this setting, add the weight of the sink to
    the first key."""
    scores, mask, hidden = scores_at(state, site), right_mask(state, site), state.config.masked_score
    right = sinks_at(state, site)
    if right is None:
        raise KeyError("sinks")
    if "sinks" in settings:
        return attention_weights(scores, mask, hidden, settings["sinks"](right, state.config))
    weights = attention_weights(scores, mask, hidden, right)
    rest = 1 - weights.sum(axis=-1, keepdims=True)
    return np.concatenate([weights[..., :1] + rest, weights[..., 1:]], axis=-1)
