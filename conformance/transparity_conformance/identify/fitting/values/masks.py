"""Masks, read off the places where scores are masked: the future, a window, and the tokens that are padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from transparity.config import FULL, SLIDING, MaskOrder, repeating
from transparity_conformance.identify.fitting.values.numbers import digits

LOWEST = float(np.finfo(np.float32).min) / 4
"""A mask below this is a dtype's lowest number, or −inf."""


def is_causal(masked: np.ndarray) -> bool:
    """Return whether every later key is masked in (batch, queries, keys)."""
    return bool(masked[:, np.triu(np.ones(masked.shape[1:], bool), 1)].all())


def window_of(masked: np.ndarray) -> int | None:
    """The distance from which on earlier keys are masked in every row; None if there is none."""
    length = masked.shape[1]
    hidden = [np.diagonal(masked, -distance, 1, 2).all() for distance in range(length)]
    window = next((distance for distance in range(length) if all(hidden[distance:])), None)
    return window or None


def in_chunks(masked: np.ndarray, size: int) -> bool:
    """Return whether keys of other chunks of `size` positions are masked in every row of (batch, queries, keys)."""
    chunk = np.arange(masked.shape[1]) // size
    return bool(masked[:, chunk[:, np.newaxis] != chunk].all())


def layers_with(windows: Sequence[int | None]) -> dict[str, Any]:
    """The window, and the kinds of layers with and without it, by the layers' windows; empty if none has one."""
    window = next((each for each in windows if each is not None), None)
    if window is None:
        return {}
    if None not in windows:
        return {"sliding_window": window}
    types = [FULL if each is None else SLIDING for each in windows]
    return {
        "sliding_window": window,
        "layer_types": repeating(types),
        "layer_overrides": {FULL: {"sliding_window": None}},
    }


def padding_tokens(masked: np.ndarray, plain: np.ndarray, tokens: np.ndarray, axis: int) -> list[int]:
    """The tokens (batch, length) whose keys (axis 1), or queries (axis 2), are masked where none is in `plain`."""
    seen = np.broadcast_to(~plain.all(0), masked.shape)

    def is_hidden(token: int) -> bool:
        of_token = np.expand_dims(tokens == token, axis) & seen
        return bool(of_token.any() and masked[of_token].all() and not masked[seen & ~of_token].all())

    return [int(token) for token in np.unique(tokens) if is_hidden(token)]


def mask_fields(value: float | None, scale: float) -> tuple[float, MaskOrder]:
    """The number that replaces masked scores, and whether before or after the scale: whichever has fewer digits."""
    if value is None or value < LOWEST:
        return -np.inf, "after-scale"
    if value == 0:
        return 0.0, "after-scale"
    before = float(f"{value / scale:.6e}")
    after = float(f"{value:.6e}")
    return (before, "before-scale") if digits(before) < digits(after) else (after, "after-scale")
