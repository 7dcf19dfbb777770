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
    """Return attention weights with another mask or softmax, without changing other taps."""
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
    if pads or causal:
        yield _hidden_row("NaN", lambda state, site, value: value.dtype.type(math.nan))
        if not config.mask_is_exact:
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
        yield from _size_faults(own.sliding_window, own.window_kind, causal=causal)
    kinds = config.layer_kinds
    if len({_window(each) for each in kinds.values()}) > 1:
        yield _windowed("exchanged", _of_the_next_kind)
    for kind, other in kinds.items():
        if other.sliding_window is not None and _window(other) != _window(own):
            yield _windowed("{kind}", partial(_of_kind, kind), kind=kind)


SLIDING = "a position sees the last {} positions, itself included, instead of {}"
WINDOWS: dict[WindowKind, tuple[str, str, WindowKind]] = {
    "sliding": (SLIDING, "sliding window is", "chunked"),
    "chunked": ("chunks have {} positions instead of {}", "chunks are", "sliding"),
}
"""For each kind of window: text about a wrong size, text about a missing window, and the other kind."""


def _size_faults(window: int, kind: WindowKind, *, causal: bool) -> Iterator[Fault]:
    says, which, other = WINDOWS[kind]
    for more in (1, -1):
        larger = lambda m, more=more: int(m.layer_window or 0) + more
        description = says.format(window + more, window)
        yield _masked("window-size", f"{more:+d}", value=window + more, window=larger, says=description)
    yield _masked("window-missing", "missing", words={"which": which}, window=lambda m: None)
    if kind == "sliding" and not causal:
        yield _masked("window-size", "half", window=lambda m: m.layer_window // 2 + 1)
        yield _masked("window-size", "twice", window=lambda m: 2 * m.layer_window - 1)
    yield _masked("window-kind", other, words={"window": window}, window_kind=lambda m: other)
    for name, begin in {"early": 1, "late": window - 1}.items() if kind == "chunked" and window > 1 else ():
        if name == "early" or window > 2:
            yield _masked("window-begin", name, begin=begin)


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


def _hidden_row(name: str, blind: Patch) -> Fault:
    def patch(state: WalkState, site: str, value: Value) -> Value:
        return np.where(right_mask(state, site).any(-1, keepdims=True), value, blind(state, site, value))

    return fault("mask-wholly-hidden-row", name, patch=patch)


def conventions(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """Yield faults of queries without a visible key, which are conventions if masked keys have the weight zero."""
    _, sublayer, tap = split(site)
    if tap == "context" and sublayer.endswith("attention"):
        yield fault("mask-wholly-hidden-row", "zero context", patch=_zero_context)
    if tap != "weights":
        return
    yield _hidden_row("zero", lambda state, site, value: value.dtype.type(0))
    if site.startswith("decoder") and sublayer == "self_attention":
        yield _hidden_row("past", _equal_past)
    if config.mask_is_exact:
        yield _hidden_row("by scores", lambda state, site, value: softmax(scores_at(state, site)))


def scores_at(state: WalkState, site: str) -> Value:
    return state.taps[site.replace(".weights", ".scores")]


def _zero_context(state: WalkState, site: str, value: Value) -> Value:
    weights, scope = site.replace(".context", ".weights"), site.rpartition(".")[0]
    sees = right_mask(state, weights).any(-1, keepdims=True)
    values = repeat_heads(state.taps[f"{scope}.value"], state.config.num_heads)
    heads = np.where(sees, state.taps[weights] @ values, value.dtype.type(0))
    batch, _, length, _ = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, -1)


def _equal_past(state: WalkState, site: str, value: Value) -> Value:
    past = MaskParts(state, site).past
    return past / past.sum(-1, keepdims=True)


def sink_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention") or tap != "weights":
        return
    if not config.attention_sinks:
        yield fault("attention-sinks", "unwanted", patch=_with_one_more)
        return
    yield from made("sinks", config, sunk)


def _with_one_more(state: WalkState, site: str, value: Value) -> Value:
    """Return weights of a softmax whose denominator has an additional 1."""
    largest = value.argmax(axis=-1, keepdims=True)
    score, weight = (np.take_along_axis(each, largest, -1) for each in (scores_at(state, site), value))
    return value / (1 + weight * np.exp(-score))


def sunk(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return attention weights with other `sinks`, or with the sink's weight added to the first key."""
    scores, mask, hidden = scores_at(state, site), right_mask(state, site), state.config.masked_score
    right = sinks_at(state, site)
    if right is None:
        raise KeyError("sinks")
    if "sinks" in settings:
        return attention_weights(scores, mask, hidden, settings["sinks"](right, state.config))
    weights = attention_weights(scores, mask, hidden, right)
    rest = 1 - weights.sum(axis=-1, keepdims=True)
    return np.concatenate([weights[..., :1] + rest, weights[..., 1:]], axis=-1)
