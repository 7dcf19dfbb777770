"""Find values that depend on a convention for queries that see no key, or on a near-tie of a router. The reference
weights all hidden keys equally, fused kernels return zeros, and an additive mask keeps the differences of scores. The
checker accepts all three conventions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, lengths_of, tap_shapes
from transparity_conformance.cache import kept_arrays
from transparity_conformance.oracle.near_ties import has_router, near_ties
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap
from transparity_numpy.masks import padding_mask, visible_keys
from transparity_numpy.positions.in_attention import window_mask
from transparity_numpy.transformer import transformer

Convention = Callable[[np.ndarray], np.ndarray]
"""The reference's attention weights → weights of queries that see no key."""

_MEASURED: WeakKeyDictionary[Probe, Arrays] = WeakKeyDictionary()
_TIED: WeakKeyDictionary[Probe, dict[str, Arrays]] = WeakKeyDictionary()


def undetermined_positions(probe: Probe, dtype: str = "float32") -> Arrays:
    """Return masks: True where a value depends on a near-tie, or on a query without visible keys. `dtype` is the
    precision whose rounding may swap experts."""
    free, tied = hidden_positions(probe), tied_positions(probe, dtype)
    return {tap: np.logical_or(free.get(tap, False), tied.get(tap, False)) for tap in {**free, **tied}}


def hidden_positions(probe: Probe) -> Arrays:
    """Return masks: True where a value depends on a query without visible keys."""
    if probe not in _MEASURED:
        identity = None if (known := probe.oracle.identity) is None else f"{known}-hidden"
        _MEASURED[probe] = kept_arrays(identity, lambda: _measure(probe)) if probe.config.mask_is_exact else {}
    return _MEASURED[probe]


def tied_positions(probe: Probe, dtype: str) -> Arrays:
    """Return masks: True where a value depends on a near-tie in `dtype`."""
    if not has_router(probe.config):
        return {}
    measured = _TIED.setdefault(probe, {})
    if dtype not in measured:
        budget = partial(probe.oracle.budget, dtype=dtype)
        ties = near_ties(probe.config, probe.exact, probe.oracle.expected, budget)
        swapped = lambda name, value: np.where(ties[name], 1 - value, value) if name in ties else value
        measured[dtype] = _changed(probe, swapped) if ties else {}
    return measured[dtype]


def judged(
    probe: Probe, tap: str, actual: np.ndarray, ours: np.ndarray, dtype: str = "float32", shown: Collection[str] = ()
) -> np.ndarray:
    """Return the values `actual`, with finite undetermined values replaced by `ours`, so that they count as right. If
    `shown` includes the logits of every router, `ours` follows the port's choices, so near-ties are not replaced."""
    free = (hidden_positions(probe) if shows_routers(probe, shown) else undetermined_positions(probe, dtype)).get(tap)
    if free is None or not free.shape == actual.shape == ours.shape:
        return actual
    return np.where(free & np.isfinite(actual), ours, actual)


def judged_gap(
    probe: Probe, tap: str, actual: np.ndarray, ours: np.ndarray, dtype: str = "float32", shown: Collection[str] = ()
) -> float:
    return gap(judged(probe, tap, actual, ours, dtype, shown), ours)


def shows_routers(probe: Probe, shown: Collection[str]) -> bool:
    config = probe.config
    layers = [f"{stack}.layers.{i}" for stack in config.stacks for i in range(config.stack_num_layers(stack))]
    routed = [scope for scope in layers if own_config(config, scope).num_experts]
    return all(f"{scope}.feed_forward.router_logits" in shown for scope in routed)


def _measure(probe: Probe) -> Arrays:
    if not blind_rows(probe).any():
        return {}
    random = np.random.default_rng(0)
    conventions: tuple[Convention, ...] = (np.zeros_like, lambda weights: random.uniform(size=weights.shape))
    one, other = (_changed(probe, partial(_with_convention, probe, convention)) for convention in conventions)
    return {tap: np.logical_or(one.get(tap, False), other.get(tap, False)) for tap in {**one, **other}}


def _with_convention(probe: Probe, convention: Convention, name: str, value: np.ndarray) -> np.ndarray:
    """Return an activation; in attention weights, apply the convention to queries that see no key."""
    if not name.endswith("attention.weights"):
        return value
    sees = np.broadcast_to(right_mask(probe, name), value.shape).any(-1, keepdims=True)
    return np.where(sees, value, convention(value))


def blind_rows(probe: Probe) -> np.ndarray:
    """Return a mask of the rows in which some query sees no key."""
    rows = len(next(iter(probe.inputs.values())))
    taps = tap_shapes(probe.config, rows, **lengths_of(probe.config, probe.inputs))
    blind = np.zeros(rows, bool)
    for name in (name for name in taps if name.endswith("attention.weights")):
        mask = np.asarray(right_mask(probe, name))
        blind |= ~mask.any(-1).reshape(len(mask), -1).all(1)
    return blind


def _changed(probe: Probe, change: Tap) -> Arrays:
    """Return masks of the activations that the tap `change` changes by more than rounding."""
    oracle, found = probe.oracle, Arrays()

    def tap(name: str, value: np.ndarray) -> np.ndarray:
        value = change(name, value)
        if probe.kept is None or name in probe.kept:
            apart = np.abs(value - oracle.expected[name]) > oracle.budget(name, "float64")
            # a changed value may be equal by chance, so mark all features of a position, or visible keys of a query
            together = right_mask(probe, name) if name.endswith("attention.weights") else not name.endswith(".scores")
            if apart.any():
                found[name] = apart | (apart.any(-1, keepdims=True) & together)
        return value

    tokens: dict[str, Any] = dict(probe.inputs)
    with np.errstate(all="ignore"):
        transformer(probe.config, probe.exact, tap=tap, **tokens)
    return found


class Call(Protocol):
    @property
    def config(self) -> TransformerConfig: ...

    @property
    def inputs(self) -> Mapping[str, np.ndarray]: ...


Mask = np.ndarray
"""(batch, 1, queries, keys), True where a query sees a key."""


def split(site: str) -> tuple[str, str, str]:
    """Split `decoder.layers.0.self_attention.scores` into layer, sublayer and activation; missing parts are empty."""
    parts = site.split(".")
    if len(parts) < 4:
        return (parts[0], "", parts[-1])
    return ".".join(parts[:3]), parts[3], parts[4] if len(parts) > 4 else ""


def own_config(config: TransformerConfig, site: str) -> TransformerConfig:
    """Return the configuration of an activation's layer; outside of layers, `config`."""
    parts = site.split(".")
    return config.for_layer(parts[0], int(parts[2])) if parts[1:2] == ["layers"] else config


def keys_name(config: TransformerConfig, site: str) -> str:
    """Return the name of the input of the keys at `site`; for an embedding, the embedded input."""
    scope, sublayer, _ = split(site)
    stack = scope.split(".")[0]
    if sublayer == "cross_attention" or (stack == "encoder" and config.has_decoder):
        return "source"
    return config.input_names[-1]


def is_causal(site: str) -> bool:
    scope, sublayer, _ = split(site)
    return scope.startswith("decoder") and sublayer != "cross_attention"


def given_mask(config: TransformerConfig, site: str) -> bool:
    """Return whether an attention mask, not the padding token, determines the padding of the keys."""
    return config.padding == "attention-mask" and keys_name(config, site) != "target"


def padding_at(state: Call, site: str, *, by_token: bool = False) -> np.ndarray:
    """Return a mask (batch, 1, 1, keys) of keys that are not padding. `by_token` ignores the attention mask."""
    config, name = state.config, keys_name(state.config, site)
    given = state.inputs["attention_mask"] if given_mask(config, site) and not by_token else None
    return padding_mask(visible_keys(state.inputs[name], config.pad_id, given, config.positions_of(name)))


def length_at(state: Call, site: str) -> int:
    return lengths_of(state.config, state.inputs)[keys_name(state.config, site)]


class MaskParts:
    def __init__(self, state: Call, site: str) -> None:
        self.state, self.site = state, site
        causal = is_causal(site)
        self.length, self.config = length_at(state, site), state.config
        self.padding = padding_at(state, site)
        """A mask (batch, 1, 1, keys) of keys that are not padding, even if the attention does not use it."""
        self.query_padding = padding_at(state, f"{site.split('.')[0]}.embedding").swapaxes(-1, -2)
        self.past = np.tril(np.ones((self.length, self.length) if causal else (1, 1), bool))[None, None]
        self.masks_padding = not causal or state.config.decoder_mask == "causal-and-padding"
        own = own_config(state.config, site)
        self.layer_window, self.window_kind = own.sliding_window, own.window_kind
        self.window = self.layer_window if split(site)[1] == "self_attention" else None
        self.square = np.ones_like(self.past)

    def seen(self, settings: Mapping[str, Any]) -> Mask:
        """Return the attention mask. In `settings`, functions of this object may replace `past`, `padding`, `window`
        and `window_kind`; the function `begin` shifts chunks. `masks_padding` and `inverted` are flags."""
        mask = settings.get("past", lambda parts: parts.past)(self)
        if settings.get("masks_padding", self.masks_padding):
            mask = mask & settings.get("padding", lambda parts: parts.padding)(self)
        window = settings.get("window", lambda parts: parts.window)(self)
        if window is not None:
            kind = settings.get("window_kind", lambda parts: parts.window_kind)(self)
            begin = settings.get("begin", lambda parts: 0)(self)
            within = window_mask(np.arange(self.length + begin)[None], self.length + begin, window, kind)
            mask = mask & within[..., begin:, begin:]
        return ~mask if settings.get("inverted") else mask


def right_mask(state: Call, site: str) -> Mask:
    return MaskParts(state, site).seen({})
