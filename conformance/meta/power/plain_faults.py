"""Every mistake that `plain_port` can make: in which forms, in which part of the model, and where it has to be found.

Whether a mistake can act at all is not written here but computed: in float64 the port with it differs from the right
one by more than float32 rounds.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

import numpy as np

from meta.power.plain_port import PlainFault, Style, build_port
from transparity.config import TransformerConfig
from transparity_conformance.oracle.probes import Probe, probes_of

Places = tuple[str, ...]

VARIANTS: dict[str, tuple[str, ...]] = {
    "attention-scale": ("the other root", "none", "twice", "one feature more", "of the heads"),
    "mask-polarity": ("padding", "causal", "everything"),
    "mask-value": ("-10", "-1e-20", "-1e9"),
    "mask-order": ("the other",),
    "mask-wholly-hidden-row": ("nan", "zeros", "mean of the past"),
    "causal-missing": ("no mask",),
    "causal-diagonal": ("hides itself", "shows the next"),
    "padding-ignored": ("source", "cross", "target", "everywhere"),
    "padding-axis": ("source", "cross", "target"),
    "softmax-axis": ("queries", "heads"),
    "head-split": ("split", "merge"),
    "head-order": ("split", "merge", "split and merge"),
    "weight-transpose": ("query", "key", "value", "output", "up", "down"),
    "weight-swapped": ("query with key", "key with value", "up with down"),
    "weight-duplicated": ("query from key", "value from key"),
    "layer-shared": ("first", "last"),
    "bias-dropped": ("query", "key", "value", "output", "up", "down", "head"),
    "norm-eps": ("1e-3", "1e-6", "1e-8", "1e-12"),
    "norm-eps-placement": ("the other",),
    "norm-variance": ("the other",),
    "norm-placement": ("the other",),
    "norm-swapped": ("self_attention with feed_forward", "self_attention with cross_attention"),
    "norm-duplicated": ("self_attention from feed_forward", "feed_forward from self_attention"),
    "norm-input-scale": ("2", "0.5"),
    "norm-missing": ("self_attention", "cross_attention", "feed_forward", "memory", "final"),
    "norm-kind": ("rms", "rms without bias", "batch statistics", "layer"),
    "residual-source": ("the normalised", "the layer's input", "nothing"),
    "activation": ("gelu", "gelu tanh", "quick gelu", "silu", "none"),
    "embedding-scale": ("missing", "root", "twice", "inverted"),
    "position-offset": ("-2", "-1", "1", "2", "4"),
    "position-layout": ("concatenated", "cosine first"),
    "position-frequency": ("base 1000", "base 100000", "exponent doubled", "exponent halved"),
    "head-tied": ("tied",),
    "padding-row": ("zero",),
    "dropout-active": ("embedding", "weights", "sublayer"),
    "low-precision": ("bfloat16 weights", "float16 weights", "bfloat16 arithmetic", "tf32 products"),
    "logit-shift": ("log-probabilities", "minus the largest", "minus the mean"),
    "probabilities": ("softmax",),
}
"""The forms of each catalogued mistake that can show in a forward pass."""

UNCATALOGUED = (
    "a temperature by head",
    "mean over positions added",
    "a head silent",
    "feed-forward clipped",
    "positions twice in the decoder",
    "values a position late",
)
"""Mistakes that no catalogue has: to be found, placed, and called by no name."""

BY_LAYER = (
    "attention-scale",
    "mask-value",
    "causal-missing",
    "softmax-axis",
    "head-split",
    "head-order",
    "weight-transpose",
    "weight-swapped",
    "bias-dropped",
    "norm-eps",
    "norm-variance",
    "weight-duplicated",
    "norm-swapped",
    "norm-duplicated",
    "norm-missing",
    "norm-kind",
    "residual-source",
    "activation",
)
"""Mistakes that are also made in one layer alone."""

BY_STACK = ("embedding-scale", "position-offset", "position-layout", "position-frequency", "padding-row")
"""Mistakes that are also made in one stack alone."""

BY_ATTENTION = (
    "attention-scale",
    "softmax-axis",
    "head-split",
    "head-order",
    "weight-transpose",
    "weight-swapped",
    "bias-dropped",
)
"""Mistakes that are also made in the cross-attention of one layer alone."""

_ATTENTION = {"query": r"attention\.query$", "key": r"attention\.key$", "value": r"attention\.value$"}
_WEIGHTS = (r"attention\.weights$",)
_HIDDEN, _FED = r"feed_forward\.hidden$", r"feed_forward\.output$"
_LAYER, _STACK = r"layers\.\d+\.output$", r"^(en|de)coder\.output$"
_ROLES = _ATTENTION | {"output": r"attention\.output$", "up": _HIDDEN, "down": _FED, "head": r"^logits$"}
_EMBEDDING = (r"\.embedding$",)
_NORM = (r"_norm$", _STACK)
"""A final norm has no tap but that of its stack."""


def faults(config: TransformerConfig) -> tuple[PlainFault, ...]:
    """Every form of every mistake, everywhere in the model and in one part of it, whether it can act or not."""
    stack = "decoder" if config.has_decoder else "encoder"
    found = []
    for id, variants in VARIANTS.items():
        scopes = [""] + [f"{stack}.layers.1"] * (id in BY_LAYER)
        if config.architecture == "encoder-decoder":
            scopes += ["encoder", "decoder"] * (id in BY_STACK) + ["encoder.layers.0"] * (id in BY_LAYER)
            scopes += ["decoder.layers.0.cross_attention"] * (id in BY_ATTENTION)
        # where masked keys weigh nothing, any number for a row that sees nothing is a convention
        free = id == "mask-wholly-hidden-row" and config.mask_is_exact
        made = [variant for variant in variants if not free or variant == "nan"]
        # and a source's padding is read by nothing but such a row
        if id == "padding-row" and config.has_decoder and config.mask_is_exact:
            scopes = [scope for scope in scopes if scope != "encoder"]
        found += [PlainFault(id, variant, scope) for variant in made for scope in scopes]
    return tuple(found)


def uncatalogued(config: TransformerConfig) -> tuple[PlainFault, ...]:
    """The mistakes outside the catalogue, as a port of `config` can make them."""
    made = tuple(PlainFault("uncatalogued", variant) for variant in UNCATALOGUED)
    return tuple(fault for fault in made if acts(fault, config))


@functools.lru_cache(maxsize=32)
def probes_for(config: TransformerConfig) -> Mapping[str, Probe]:
    """The probes that a check of `config` uses."""
    return probes_of(config, "config")


def acts(fault: PlainFault, config: TransformerConfig) -> bool:
    """Return whether the mistake changes the logits of some probe by more than float32 rounds, computed in float64."""
    port = build_port(fault, dtype="float64")
    for probe in probes_for(config).values():
        with np.errstate(all="ignore"):
            logits = port(probe.config, probe.parameters)(**probe.inputs)["logits"]
        apart = np.abs(logits - probe.oracle.expected["logits"]).max()
        if not apart <= probe.oracle.budget("logits", "float32"):
            return True
    return False


@functools.lru_cache(maxsize=32)
def acting(config: TransformerConfig) -> tuple[PlainFault, ...]:
    """The catalogued mistakes that can act for `config`."""
    return tuple(fault for fault in faults(config) if acts(fault, config))


def placed_at(fault: PlainFault, config: TransformerConfig, where: str) -> bool:
    """Return whether `where` is a tap at which the mistake shows by itself, whatever came before."""
    if not where.startswith(fault.scope) and where != "logits":
        return False
    return any(re.search(place, where) for place in places(fault, config))


_PLACES: dict[str, Places] = {
    "mask-polarity": _WEIGHTS,
    "mask-value": _WEIGHTS,
    "mask-order": _WEIGHTS,
    "mask-wholly-hidden-row": _WEIGHTS,
    "causal-missing": (r"^decoder.*self_attention\.weights$",),
    "causal-diagonal": (r"^decoder.*self_attention\.weights$",),
    "softmax-axis": _WEIGHTS,
    "norm-eps": _NORM,
    "norm-eps-placement": _NORM,
    "norm-variance": _NORM,
    "norm-kind": _NORM,
    "norm-input-scale": _NORM,
    "layer-shared": tuple(place for role, place in _ROLES.items() if role != "head") + _NORM,
    "activation": (_HIDDEN,),
    "embedding-scale": _EMBEDDING,
    "position-offset": _EMBEDDING,
    "position-layout": _EMBEDDING,
    "position-frequency": _EMBEDDING,
    "padding-row": _EMBEDDING,
    "head-tied": (r"^logits$",),
    "logit-shift": (r"^logits$",),
    "probabilities": (r"^logits$",),
    "low-precision": ("",),
}
"""The places of the faults that are at the same places in every configuration."""


def places(fault: PlainFault, config: TransformerConfig) -> Places:
    """The taps, as patterns, at the end of the segments that the mistake makes wrong."""
    variant = fault.variant
    if fault.id == "attention-scale":
        return _scaled(config)
    if fault.id in _PLACES:
        return _PLACES[fault.id]
    if fault.id in ("padding-ignored", "padding-axis"):
        attention = {"source": "^encoder.*self_", "cross": "cross_", "target": "^decoder.*self_"}.get(variant, "")
        return (attention + r"attention\.weights$",)
    if fault.id in ("head-split", "head-order"):
        merged, split = (r"attention\.context$",), tuple(_ATTENTION.values())
        return {"split": split, "merge": merged}.get(variant, split + merged)
    if fault.id in ("weight-transpose", "bias-dropped", "weight-swapped"):
        return tuple(_ROLES[role] for role in variant.split(" with "))
    if fault.id == "weight-duplicated":
        return (_ROLES[variant.partition(" from ")[0]],)
    if fault.id == "norm-duplicated":
        return (f"{variant.partition(' from ')[0]}_norm$",)
    if fault.id == "norm-swapped":
        return tuple(f"{part}_norm$" for part in variant.split(" with "))
    if fault.id == "norm-placement":
        return _NORM + tuple(_ATTENTION.values()) + (_HIDDEN, _LAYER)
    if fault.id == "norm-missing":
        return _without_norm(variant, config)
    if fault.id == "dropout-active":
        results = (_ROLES["output"], _FED)  # by `dropout_at` it is at the result, whose residual shows it
        return {"embedding": _EMBEDDING, "weights": _WEIGHTS}.get(variant, _residual(config) + results)
    if fault.id == "residual-source":
        return _residual(config)
    if fault.id != "uncatalogued":
        raise KeyError(f"add {fault.id} to _PLACES in conformance/meta/power/plain_faults.py")
    return {
        "a temperature by head": _WEIGHTS,
        "mean over positions added": _residual(config),
        "a head silent": (r"attention\.context$",),
        "feed-forward clipped": (_FED,),
        "positions twice in the decoder": _EMBEDDING,
        "values a position late": (r"attention\.value$",),
    }[variant]


def _scaled(config: TransformerConfig) -> Places:
    """A score masked before the scale is scaled too, which shows if it is small enough to weigh something."""
    early = config.mask_order == "before-scale" and -1e6 < config.mask_value < -1e-6
    return (r"attention\.scores$",) + _WEIGHTS * early


def _residual(config: TransformerConfig) -> Places:
    """First taps that show a residual: none shows it alone, and with pre-norm several do."""
    return (r"_norm$", _LAYER) if config.norm_position == "pre" else (r"(attention|feed_forward)_norm$",)


def _without_norm(part: str, config: TransformerConfig) -> Places:
    """A norm that is left out has no tap either: what shows it is what reads it."""
    readers = {
        "self_attention": tuple(_ATTENTION.values()),
        "cross_attention": (r"cross_attention\.query$",),
        "feed_forward": (_HIDDEN,),
        "memory": (r"cross_attention\.(key|value)$",),
        "final": (_STACK,),
    }
    own = (f"{part}_norm$", _STACK) if part == "final" else (f"{part}_norm$",)
    if config.norm_position == "pre" or part in ("memory", "final"):
        return own + readers[part]
    behind = {
        "self_attention": (r"cross_attention\.query$", r"cross_attention_norm$", _HIDDEN, r"feed_forward_norm$"),
        "cross_attention": (_HIDDEN, r"feed_forward_norm$"),
        "feed_forward": (_LAYER,),
    }
    return own + behind[part]


STYLES = (
    "plain",
    "fused",
    "einsum",
    "scale in the query",
    "another infinity",
    "permuted sums",
    "chunked sums",
    "rows alone",
    "trimmed",
    "online softmax",
    "float64",
    "bfloat16",
    "heads permuted",
    "hidden permuted",
    "logits alone",
    "some taps",
    "no key bias",
    "another convention",
)
"""Ways to write a correct port; `bfloat16` is declared as such."""


def styles(config: TransformerConfig, seeds: int = 4) -> tuple[Style, ...]:
    """Correct ports of `config`, as many of each kind as `seeds` says."""
    hides = config.mask_value <= -1e6
    left_out = {
        "trimmed": hides and config.architecture == "encoder-decoder",
        "no key bias": hides and config.qkv_bias,
        "another convention": config.mask_is_exact,
    }
    kinds = [kind for kind in STYLES if left_out.get(kind, True)]
    return tuple(Style(kind, seed) for kind in kinds for seed in range(seeds))
