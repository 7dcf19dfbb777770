"""Faults between scores and weights: what is hidden, by what, and over which axis the softmax runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, WalkState
from transparity_conformance.diagnosis.faults.sites import Value, given_mask, keys_of, padding_at, split
from transparity_numpy.attention import attention_weights, masked_score, repeat_heads
from transparity_numpy.functional import softmax
from transparity_numpy.positions import window_mask

Mask = np.ndarray


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap == "context" and sublayer.endswith("attention"):
        says = "a row that sees nothing gathers zeros"
        yield Fault("mask-wholly-hidden-row", "zero context", says, patch=_zero_context)
    if tap != "weights":
        return
    pads = config.pad_id is not None or given_mask(config, site)
    causal = site.startswith("decoder") and sublayer == "self_attention"
    masked = not causal or config.decoder_mask == "causal-and-padding"
    hides = causal or pads
    if hides:
        yield _masked("mask-polarity", "inverted", "the mask keeps what it should hide", _inverted)
        for value in (-10.0, -1e-20, -1e-9, -1.0, 0.0, -100.0, -1e4, -1e9, -math.inf):
            if value != config.mask_value:
                yield Fault(
                    "mask-value",
                    f"{value:g}",
                    f"hidden scores are replaced by {value:g} instead of {config.mask_value:g}",
                    patch=partial(_hidden_by, value),
                    value=value,
                )
        for value in (config.mask_value, -1e9, -10.0, 1.0):
            if math.isfinite(value):
                says = f"{value:g} is added to hidden scores instead of replacing them"
                yield Fault("mask-value", f"{value:g} added", says, patch=partial(_added, value), value=value)
        says = "the mask multiplies the weights behind the softmax"
        yield Fault("mask-order", "behind the softmax", says, patch=partial(_behind, False))
        says += ", and they are normalised again"
        yield Fault("mask-order", "behind the softmax, normalised", says, patch=partial(_behind, True))
        other = "after" if config.mask_order == "before-scale" else "before"
        says = f"hidden scores are replaced {other} the scale"
        yield Fault("mask-order", other, says, patch=_other_order)
    if causal:
        yield _masked("causal-missing", "missing", "there is no causal mask: the future is seen", _no_future)
        yield _masked("causal-diagonal", "hides itself", "each position hides itself, too", partial(_diagonal, -1))
        yield _masked(
            "causal-diagonal", "shows the next", "each position sees the next one, too", partial(_diagonal, 1)
        )
        says = "the causal mask is transposed: the past is hidden"
        yield _masked("mask-polarity", "past hidden", says, _past_hidden)
        if pads and masked:
            says = "the causal part of the mask keeps what it should hide"
            yield _masked("mask-polarity", "causal inverted", says, _causal_inverted)
            says = "the padding part of the mask keeps what it should hide"
            yield _masked("mask-polarity", "padding inverted", says, _padding_inverted)
    if pads and masked:
        says = "padding is not hidden"
        yield _masked("padding-ignored", "not hidden", says, _no_padding)
        says = "padded queries are masked instead of padded keys"
        yield _masked("padding-axis", "queries", says, _padded_queries)
    if pads and causal and not masked:
        yield _masked("padding-ignored", "hidden", "padding is hidden, which is shown here", _with_padding)
    if config.sliding_window is not None and sublayer == "self_attention":
        yield from _window_faults(config, site, causal=causal)
    yield Fault("softmax-axis", "queries", "softmax runs over the queries", patch=partial(_softmax_over, -2))
    if config.num_heads > 1:
        yield Fault("softmax-axis", "heads", "softmax runs over the heads", patch=partial(_softmax_over, 1))
    if pads or causal:
        for name, fill, says in (
            ("zero", 0.0, "a row that sees nothing weighs nothing"),
            ("NaN", math.nan, "a row that sees nothing becomes NaN"),
        ):
            yield Fault("mask-wholly-hidden-row", name, says, patch=partial(_unseeing, fill))
        if causal:
            says = "a row that sees nothing weighs the keys up to its own position alike"
            yield Fault("mask-wholly-hidden-row", "past", says, patch=_unseeing_past)


def _window_faults(config: TransformerConfig, site: str, *, causal: bool) -> Iterator[Fault]:
    window, right = config.sliding_window, config.layer_window(layer_of(site))
    assert window is not None
    if right is not None:
        for wide in (window + 1, window - 1):
            says = f"a position sees {wide} back, itself among them, instead of {window}"
            change = partial(_windowed_by, wide - window)
            yield Fault("window-size", f"{wide - window:+d}", says, patch=partial(weighed, change), value=wide)
        yield _masked("window-missing", "missing", "there is no window: all that came before is seen", _without_window)
        if not causal:
            yield _masked("window-size", "half", "half of the window lies on either side", _half_windowed)
    if config.full_attention_every is not None:
        says = "the layers that see beyond the window are exchanged with those that do not"
        yield _masked("window-layers", "exchanged", says, _other_layers)
        if right is None:
            yield _masked("window-layers", "all", "this layer has a window as well, which sees all", _windowed)


def layer_of(site: str) -> int:
    return int(site.split(".")[2])


def right_mask(state: WalkState, site: str) -> Mask:
    """What the attention at `site` may look at."""
    return shown_of(state, site, *parts_at(state, site))


def parts_at(state: WalkState, site: str) -> tuple[Mask, Mask]:
    """Padding (batch, 1, 1, keys) and the future (1, 1, queries, keys), whether or not they are hidden here."""
    tokens, causal = keys_of(state, site)
    length = tokens.shape[1]
    tril = np.tril(np.ones((length, length), bool)) if causal else np.ones((1, 1), bool)
    return padding_at(state, site), tril[None, None]


def _hides_padding(state: WalkState, site: str) -> bool:
    return not keys_of(state, site)[1] or state.config.decoder_mask == "causal-and-padding"


def shown_of(state: WalkState, site: str, padding: Mask, causal: Mask) -> Mask:
    """What is seen, were this the padding and that the future."""
    return _near(state, site, _shown(state, site, padding, causal))


def _shown(state: WalkState, site: str, padding: Mask, causal: Mask) -> Mask:
    """What is seen, were there no window."""
    mask: Mask = causal & padding if _hides_padding(state, site) else causal
    return mask


def _near(state: WalkState, site: str, mask: Mask) -> Mask:
    """What of the mask lies within the window, if the attention has one."""
    self_attends = split(site)[1] == "self_attention"
    return _within(state, site, mask, state.config.layer_window(layer_of(site)) if self_attends else None)


def _within(state: WalkState, site: str, mask: Mask, window: int | None) -> Mask:
    length = mask.shape[-1]
    return mask if window is None else mask & window_mask(np.arange(length)[None], length, window)


def _without_window(state: WalkState, site: str) -> Mask:
    return _shown(state, site, *parts_at(state, site))


def _windowed(state: WalkState, site: str) -> Mask:
    return _within(state, site, _without_window(state, site), state.config.sliding_window)


def _windowed_by(more: int, state: WalkState, site: str) -> Mask:
    assert state.config.sliding_window is not None
    return _within(state, site, _without_window(state, site), state.config.sliding_window + more)


def _half_windowed(state: WalkState, site: str) -> Mask:
    assert state.config.sliding_window is not None
    return _within(state, site, _without_window(state, site), state.config.sliding_window // 2 + 1)


def _other_layers(state: WalkState, site: str) -> Mask:
    has = state.config.layer_window(layer_of(site)) is not None
    return _within(state, site, _without_window(state, site), None if has else state.config.sliding_window)


def _masked(identity: str, variant: str, says: str, change: Callable[[WalkState, str], Mask]) -> Fault:
    return Fault(identity, variant, says, patch=partial(weighed, change))


def weighed(change: Callable[[WalkState, str], Mask], state: WalkState, site: str, value: Value) -> Value:
    mask = np.broadcast_to(change(state, site), value.shape)
    return attention_weights(scores_at(state, site), mask, masked_score(state.config))


def scores_at(state: WalkState, site: str) -> Value:
    return state.taps[site.replace(".weights", ".scores")]


def _inverted(state: WalkState, site: str) -> Mask:
    return ~right_mask(state, site)


def _no_future(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return shown_of(state, site, padding, np.ones_like(causal))


def _diagonal(offset: int, state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return shown_of(state, site, padding, np.tril(np.ones_like(causal), offset))


def _past_hidden(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return shown_of(state, site, padding, np.triu(np.ones_like(causal)))


def _causal_inverted(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return _near(state, site, padding & ~causal)


def _padding_inverted(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return _near(state, site, ~padding & causal)


def _no_padding(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return _near(state, site, np.ones_like(padding) & causal)


def _with_padding(state: WalkState, site: str) -> Mask:
    padding, causal = parts_at(state, site)
    return _near(state, site, padding & causal)


def _padded_queries(state: WalkState, site: str) -> Mask:
    _, causal = parts_at(state, site)
    of_queries = padding_at(state, f"{site.split('.')[0]}.embedding")
    return _near(state, site, of_queries.swapaxes(-1, -2) & causal)


def _hidden_by(hidden: float, state: WalkState, site: str, value: Value) -> Value:
    scale = masked_score(state.config) / state.config.mask_value if math.isfinite(state.config.mask_value) else 1.0
    if state.config.mask_value == 0:
        scale = 1.0
    return attention_weights(scores_at(state, site), right_mask(state, site), hidden * scale)


def _added(hidden: float, state: WalkState, site: str, value: Value) -> Value:
    return softmax(scores_at(state, site) + np.where(right_mask(state, site), 0.0, hidden).astype(value.dtype))


def _behind(normalised: bool, state: WalkState, site: str, value: Value) -> Value:
    weights = softmax(scores_at(state, site)) * right_mask(state, site)
    return weights / weights.sum(-1, keepdims=True) if normalised else weights


def _other_order(state: WalkState, site: str, value: Value) -> Value:
    order = "after-scale" if state.config.mask_order == "before-scale" else "before-scale"
    changed = type(state.config)(
        **(state.config.as_dict() | {"mask_value": state.config.mask_value, "mask_order": order})
    )
    return attention_weights(scores_at(state, site), right_mask(state, site), masked_score(changed))


def _softmax_over(axis: int, state: WalkState, site: str, value: Value) -> Value:
    lowest = float(np.finfo(value.dtype).min) / 2
    hidden = value.dtype.type(max(masked_score(state.config), lowest))
    shown = np.where(right_mask(state, site), scores_at(state, site), hidden)
    return np.moveaxis(softmax(np.moveaxis(shown, axis, -1)), -1, axis)


def _unseeing(fill: float, state: WalkState, site: str, value: Value) -> Value:
    sees = right_mask(state, site).any(-1, keepdims=True)
    return np.where(sees, value, value.dtype.type(fill))


def _unseeing_past(state: WalkState, site: str, value: Value) -> Value:
    _, causal = parts_at(state, site)
    sees = right_mask(state, site).any(-1, keepdims=True)
    return np.where(sees, value, causal / causal.sum(-1, keepdims=True))


def _zero_context(state: WalkState, site: str, value: Value) -> Value:
    weights = site.replace(".context", ".weights")
    sees = right_mask(state, weights).any(-1, keepdims=True)
    scope = site.rpartition(".")[0]
    values = repeat_heads(state.taps[f"{scope}.value"], state.config.num_heads)
    heads = np.where(sees, state.taps[weights] @ values, value.dtype.type(0))
    batch, _, length, _ = heads.shape
    return heads.swapaxes(1, 2).reshape(batch, length, -1)
