"""Faults between scores and weights: the mask, the value of masked scores, and the axis of the softmax."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import MaskOrder, TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, Patch, WalkState
from transparity_conformance.diagnosis.faults.sites import Value, given_mask, keys_of, padding_at, split
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.attention import attention_weights, repeat_heads
from transparity_numpy.masks import window_mask

Mask = np.ndarray
"""True where a query (batch, 1, queries, keys) sees a key."""


class MaskParts:
    """The parts of the right mask of one attention."""

    def __init__(self, state: WalkState, site: str) -> None:
        tokens, causal = keys_of(state, site)
        self.length, self.config = tokens.shape[1], state.config
        self.padding = padding_at(state, site)
        """(batch, 1, 1, keys), whether or not padding is masked here."""
        self.query_padding = padding_at(state, f"{site.split('.')[0]}.embedding").swapaxes(-1, -2)
        self.past = np.tril(np.ones((self.length, self.length) if causal else (1, 1), bool))[None, None]
        self.masks_padding = not causal or state.config.decoder_mask == "causal-and-padding"
        self.layer_window = state.config.layer_window(layer_of(site))
        self.window = self.layer_window if split(site)[1] == "self_attention" else None
        self.square = np.ones_like(self.past)
        self.earlier = np.tril(self.square, -1)

    def seen(self, padding: Mask | None = None, past: Mask | None = None) -> Mask:
        """The mask with another `padding` or another `past`."""
        return self.within(self.unwindowed(padding, past))

    def unwindowed(self, padding: Mask | None = None, past: Mask | None = None) -> Mask:
        past = self.past if past is None else past
        return past & (self.padding if padding is None else padding) if self.masks_padding else past

    def within(self, mask: Mask) -> Mask:
        """Restrict `mask` to the window of this attention, if it has one."""
        return mask if self.window is None else self._within(mask, self.window)

    def _within(self, mask: Mask, window: int) -> Mask:
        return mask & window_mask(np.arange(self.length)[None], self.length, window)

    def windowed(self, change: Callable[[int], int] = lambda window: window) -> Mask:
        """The mask with a window of another size in every layer."""
        assert self.config.sliding_window is not None
        return self._within(self.unwindowed(), change(self.config.sliding_window))


def layer_of(site: str) -> int:
    return int(site.split(".")[2])


def right_mask(state: WalkState, site: str) -> Mask:
    return MaskParts(state, site).seen()


Change = Callable[[MaskParts], Mask]


def _masked(identity: str, variant: str, description: str, change: Change) -> Fault:
    return Fault(identity, variant, description, patch=partial(weighed, change))


def weighed(change: Change, state: WalkState, site: str, value: Value) -> Value:
    """The weights under another mask."""
    mask = np.broadcast_to(change(MaskParts(state, site)), value.shape)
    return attention_weights(scores_at(state, site), mask, state.config.masked_score)


def _blinded(change: Change, blind: Patch, state: WalkState, site: str, value: Value) -> Value:
    """The weights under another mask, in rows that see nothing those of `blind`."""
    mask = np.broadcast_to(change(MaskParts(state, site)), value.shape)
    return np.where(mask.any(-1, keepdims=True), weighed(change, state, site, value), blind(state, site, value))


def _hiding(identity: str, variant: str, description: str, change: Change) -> Iterator[Fault]:
    """A fault of the mask that may hide all keys of a row: with the weights that ports have there."""
    yield _masked(identity, variant, description, change)
    says = f"{description}; a row that sees nothing becomes NaN"
    nan = partial(_blinded, change, lambda state, site, value: np.full_like(value, np.nan))  # a softmax of −∞ alone
    yield Fault(identity, f"{variant}, NaN", says, patch=nan)
    says = f"{description}; a row that sees nothing weighs its keys by their scores"
    scores = partial(_blinded, change, lambda state, site, value: softmax(scores_at(state, site)))  # less a number
    yield Fault(identity, f"{variant}, by scores", says, patch=scores)


CAUSAL = (
    _masked(
        "causal-missing",
        "missing",
        "the causal mask is missing: the future is visible",
        lambda m: m.seen(past=m.square),
    ),
    _masked(
        "causal-diagonal",
        "shows the next",
        "each position sees the next one, too",
        lambda m: m.seen(past=np.tril(m.square, 1)),
    ),
    _masked(
        "mask-polarity",
        "past hidden",
        "the causal mask is transposed: the past is masked",
        lambda m: m.seen(past=np.triu(m.square)),
    ),
)
CAUSAL_AND_PADDING = (
    _masked(
        "mask-polarity",
        "causal inverted",
        "the causal part of the mask is inverted",
        lambda m: m.within(m.padding & ~m.past),
    ),
    _masked(
        "mask-polarity",
        "padding inverted",
        "the padding part of the mask is inverted",
        lambda m: m.within(~m.padding & m.past),
    ),
)
PADDING = (
    _masked(
        "padding-ignored", "not hidden", "padding is not masked", lambda m: m.within(np.ones_like(m.padding) & m.past)
    ),
    _masked(
        "padding-axis",
        "queries",
        "padded queries are masked instead of padded keys",
        lambda m: m.within(m.query_padding & m.past),
    ),
)
PADDING_HIDDEN = _masked(
    "padding-ignored",
    "hidden",
    "padding is masked, but the reference leaves it visible",
    lambda m: m.within(m.padding & m.past),
)
INVERTED = ("mask-polarity", "inverted", "the mask is inverted", lambda m: ~m.seen())
DIAGONAL = ("causal-diagonal", "hides itself", "each position masks itself, too", lambda m: m.seen(past=m.earlier))


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap == "context" and not config.mask_is_exact:
        yield from conventions(config, site)
    if tap != "weights":
        return
    pads = config.pad_id is not None or given_mask(config, site)
    causal = site.startswith("decoder") and sublayer == "self_attention"
    masks_padding = pads and (not causal or config.decoder_mask == "causal-and-padding")
    if causal or pads:
        yield from _hiding(*INVERTED)
        yield from _value_faults(config)
    if causal:
        yield from CAUSAL
        yield from _hiding(*DIAGONAL)
    if causal and masks_padding:
        yield from CAUSAL_AND_PADDING
    if masks_padding:
        yield from PADDING
    elif pads:
        yield PADDING_HIDDEN
    if config.sliding_window is not None and sublayer == "self_attention":
        yield from _window_faults(config, config.sliding_window, layer_of(site), causal=causal)
    yield Fault("softmax-axis", "queries", "softmax runs over the queries", patch=partial(_softmax_over, -2))
    if config.num_heads > 1:
        yield Fault("softmax-axis", "heads", "softmax runs over the heads", patch=partial(_softmax_over, 1))
    if pads or causal:
        yield HIDDEN_ROW_IS_NAN
        if not config.mask_is_exact:
            yield from conventions(config, site)


def _value_faults(config: TransformerConfig) -> Iterator[Fault]:
    for value in (-10.0, -1e-20, -1e-9, -1.0, 0.0, -100.0, -1e4, -1e9, -math.inf):
        if value != config.mask_value:
            description = f"masked scores are replaced by {value:g} instead of {config.mask_value:g}"
            yield Fault("mask-value", f"{value:g}", description, patch=partial(_hidden_by, value), value=value)
    for value in (config.mask_value, -1e9, -10.0, 1.0):
        if math.isfinite(value):
            description = f"{value:g} is added to masked scores instead of replacing them"
            yield Fault("mask-value", f"{value:g} added", description, patch=partial(_added, value), value=value)
    description = "the mask multiplies the weights after the softmax"
    yield Fault("mask-order", "behind the softmax", description, patch=partial(_behind, False))
    description += ", and they are normalised again"
    yield Fault("mask-order", "behind the softmax, normalised", description, patch=partial(_behind, True))
    other = "after" if config.mask_order == "before-scale" else "before"
    yield Fault("mask-order", other, f"masked scores are replaced {other} the scale", patch=_other_order)


def _window_faults(config: TransformerConfig, window: int, layer: int, *, causal: bool) -> Iterator[Fault]:
    layer_window = config.layer_window(layer)
    if layer_window is not None:
        for more in (1, -1):
            description = f"a position sees the last {window + more} positions, itself included, instead of {window}"
            patch = partial(weighed, partial(_windowed_by, more))
            yield Fault("window-size", f"{more:+d}", description, patch=patch, value=window + more)
        description = "the sliding window is missing: the whole past is visible"
        yield _masked("window-missing", "missing", description, lambda m: m.unwindowed())
        if not causal:
            description = "half of the window is on each side"
            yield _masked("window-size", "half", description, lambda m: m.windowed(lambda size: size // 2 + 1))
    if config.full_attention_every is not None:
        description = "layers with and without a window are exchanged"
        yield _masked("window-layers", "exchanged", description, _exchanged_layers)
        if layer_window is None:
            description = "this layer has a window, although it should see all positions"
            yield _masked("window-layers", "all", description, lambda m: m.windowed())


def _windowed_by(more: int, m: MaskParts) -> Mask:
    return m.windowed(lambda window: window + more)


def _exchanged_layers(m: MaskParts) -> Mask:
    return m.windowed() if m.layer_window is None else m.unwindowed()


def _hidden_row(name: str, description: str, patch: Patch) -> Fault:
    return Fault("mask-wholly-hidden-row", name, f"a row with every key masked {description}", patch=patch)


def conventions(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """The values that ports return where a row has no visible key; faults only where masked keys weigh something."""
    _, sublayer, tap = split(site)
    if tap == "context" and sublayer.endswith("attention"):
        yield _hidden_row("zero context", "returns zeros", _zero_context)
    if tap != "weights":
        return
    yield _hidden_row("zero", "has weights of zero", partial(_unseeing, 0.0))
    if site.startswith("decoder") and sublayer == "self_attention":
        yield _hidden_row("past", "weighs the keys up to its own position alike", _unseeing_past)
    if config.mask_is_exact:
        yield _hidden_row("by scores", "weighs its keys by their scores, as if none were masked", _unseeing_scores)


def scores_at(state: WalkState, site: str) -> Value:
    return state.taps[site.replace(".weights", ".scores")]


def _hidden_by(hidden: float, state: WalkState, site: str, value: Value) -> Value:
    masked, given = state.config.masked_score, state.config.mask_value
    scale = masked / given if given and math.isfinite(given) else 1.0
    return attention_weights(scores_at(state, site), right_mask(state, site), hidden * scale)


def _added(hidden: float, state: WalkState, site: str, value: Value) -> Value:
    return softmax(scores_at(state, site) + np.where(right_mask(state, site), 0.0, hidden).astype(value.dtype))


def _behind(normalised: bool, state: WalkState, site: str, value: Value) -> Value:
    weights = softmax(scores_at(state, site)) * right_mask(state, site)
    return weights / weights.sum(-1, keepdims=True) if normalised else weights


def _other_order(state: WalkState, site: str, value: Value) -> Value:
    order: MaskOrder = "after-scale" if state.config.mask_order == "before-scale" else "before-scale"
    changed = dataclasses.replace(state.config, mask_order=order)
    return attention_weights(scores_at(state, site), right_mask(state, site), changed.masked_score)


def _softmax_over(axis: int, state: WalkState, site: str, value: Value) -> Value:
    lowest = float(np.finfo(value.dtype).min) / 2
    hidden = value.dtype.type(max(state.config.masked_score, lowest))
    scores = np.where(right_mask(state, site), scores_at(state, site), hidden)
    return np.moveaxis(softmax(np.moveaxis(scores, axis, -1)), -1, axis)


def _unseeing(fill: float, state: WalkState, site: str, value: Value) -> Value:
    sees = right_mask(state, site).any(-1, keepdims=True)
    return np.where(sees, value, value.dtype.type(fill))


def _unseeing_scores(state: WalkState, site: str, value: Value) -> Value:
    sees = right_mask(state, site).any(-1, keepdims=True)
    return np.where(sees, value, softmax(scores_at(state, site)))


def _unseeing_past(state: WalkState, site: str, value: Value) -> Value:
    parts = MaskParts(state, site)
    return np.where(parts.seen().any(-1, keepdims=True), value, parts.past / parts.past.sum(-1, keepdims=True))


def _zero_context(state: WalkState, site: str, value: Value) -> Value:
    weights, scope = site.replace(".context", ".weights"), site.rpartition(".")[0]
    sees = right_mask(state, weights).any(-1, keepdims=True)
    values = repeat_heads(state.taps[f"{scope}.value"], state.config.num_heads)
    heads = np.where(sees, state.taps[weights] @ values, value.dtype.type(0))
    batch, _, length, _ = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, -1)


HIDDEN_ROW_IS_NAN = _hidden_row("NaN", "becomes NaN", partial(_unseeing, math.nan))
