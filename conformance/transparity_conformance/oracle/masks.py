"""The keys that each query of the reference attends to, in every attention: the configuration and the inputs determine
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import lengths_of
from transparity_numpy.masks import padding_mask, visible_keys, window_mask


class Call(Protocol):
    """A call of a model."""

    @property
    def config(self) -> TransformerConfig: ...

    @property
    def inputs(self) -> Mapping[str, np.ndarray]: ...


Mask = np.ndarray
"""True where a query (batch, 1, queries, keys) sees a key."""


def split(site: str) -> tuple[str, str, str]:
    """Split a tap into layer, sublayer and value: `decoder.layers.0`, `self_attention`, `scores`; empty if absent."""
    parts = site.split(".")
    if len(parts) < 4:
        return (parts[0], "", parts[-1])
    return ".".join(parts[:3]), parts[3], parts[4] if len(parts) > 4 else ""


def own_config(config: TransformerConfig, site: str) -> TransformerConfig:
    """The configuration as the layer of a tap sees it; of a tap outside of the layers, the whole model's."""
    parts = site.split(".")
    return config.for_layer(parts[0], int(parts[2])) if parts[1:2] == ["layers"] else config


def keys_name(config: TransformerConfig, site: str) -> str:
    """The name of the input that an attention attends to, or that is embedded."""
    scope, sublayer, _ = split(site)
    stack = scope.split(".")[0]
    if sublayer == "cross_attention" or (stack == "encoder" and config.has_decoder):
        return "source"
    return config.input_names[-1]


def is_causal(site: str) -> bool:
    """Whether an attention sees no later key."""
    scope, sublayer, _ = split(site)
    return scope.startswith("decoder") and sublayer != "cross_attention"


def given_mask(config: TransformerConfig, site: str) -> bool:
    """Return whether an attention mask, not the padding token, marks the padding of the tokens at `site`."""
    return config.padding == "attention-mask" and keys_name(config, site) != "target"


def padding_at(state: Call, site: str, *, by_token: bool = False) -> np.ndarray:
    """The mask (batch, 1, 1, keys) of the tokens at `site` that are not padding; `by_token` ignores a given mask."""
    if state.config.reads_pixels:
        return padding_mask(np.ones((len(state.inputs["pixels"]), state.config.max_length), bool))
    given = state.inputs["attention_mask"] if given_mask(state.config, site) and not by_token else None
    return padding_mask(visible_keys(state.inputs[keys_name(state.config, site)], state.config.pad_id, given))


def length_at(state: Call, site: str) -> int:
    """The number of positions that an attention attends to, or that are embedded."""
    return lengths_of(state.config, state.inputs)[keys_name(state.config, site)]


class MaskParts:
    """The parts of the right mask of one attention."""

    def __init__(self, state: Call, site: str) -> None:
        self.state, self.site = state, site
        causal = is_causal(site)
        self.length, self.config = length_at(state, site), state.config
        self.padding = padding_at(state, site)
        """(batch, 1, 1, keys), whether or not padding is masked here."""
        self.query_padding = padding_at(state, f"{site.split('.')[0]}.embedding").swapaxes(-1, -2)
        self.past = np.tril(np.ones((self.length, self.length) if causal else (1, 1), bool))[None, None]
        self.masks_padding = not causal or state.config.decoder_mask == "causal-and-padding"
        own = own_config(state.config, site)
        self.layer_window, self.window_kind = own.sliding_window, own.window_kind
        self.window = self.layer_window if split(site)[1] == "self_attention" else None
        self.square = np.ones_like(self.past)

    def seen(self, settings: Mapping[str, Any]) -> Mask:
        """The mask, in which `settings` may change `past`, `padding`, `window` and `window_kind`, each by a function of
        these parts, where the first of the chunks begins, whether it `masks_padding`, and whether all is `inverted`."""
        mask = settings.get("past", lambda parts: parts.past)(self)
        if settings.get("masks_padding", self.masks_padding):
            mask = mask & settings.get("padding", lambda parts: parts.padding)(self)
        window = settings.get("window", lambda parts: parts.window)(self)
        if window is not None:
            kind, begin = settings.get("window_kind", lambda parts: parts.window_kind)(self), settings.get("begin", 0)
            within = window_mask(np.arange(self.length + begin)[None], self.length + begin, window, kind)
            mask = mask & within[..., begin:, begin:]
        return ~mask if settings.get("inverted") else mask


def right_mask(state: Call, site: str) -> Mask:
    return MaskParts(state, site).seen({})
