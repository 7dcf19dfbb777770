"""Faults at the head: its scale, its cap, and what of the last layer goes into it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import shared
from transparity_conformance.diagnosis.fault import Fault, NumericFault, Settings, WalkState
from transparity_conformance.diagnosis.faults.attention import KNOWN_CAPS
from transparity_conformance.diagnosis.faults.sites import Value, apply_linear, padding_at, parameters_of
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.feed_forward import ACTIVATIONS
from transparity_numpy.head import head, transform_for_head
from transparity_numpy.normalization import norm


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site != "logits":
        return
    if config.head == "pooled":
        for name, (pooled, description) in POOLINGS.items():
            yield Fault("pooling", name, description, patch=partial(_pooled, pooled))
    if config.head != "logits":
        return
    known = [config.head_input_scale]
    for name, scale in SCALES.items() if config.tied_head or config.head_input_scale != 1 else ():
        if not any(math.isclose(scale(config), each, rel_tol=1e-9) for each in known):
            known.append(scale(config))
            description = f"the input of the head is multiplied by {scale(config):.4g}, {name}, not by {_right(config)}"
            yield _headed("head-scale", name, description, scale=scale)
    if config.head_transform:
        for name, (transform, description) in TRANSFORMS.items():
            if name == f"by {config.activation}":
                continue
            yield _headed("head-transform", name, description, transform=transform)
    if config.final_softcap is not None:
        yield from _cap_faults(config)
    else:
        yield from (other_cap(config, cap) for cap in KNOWN_CAPS)


SCALES: dict[str, Callable[[TransformerConfig], float]] = {
    "1 (none)": lambda config: 1.0,
    "√embed_dim": lambda config: config.head_multiplier * config.embed_dim**0.5,
    "1/√embed_dim": lambda config: config.head_multiplier * config.embed_dim**-0.5,
    "the multiplier alone": lambda config: config.head_multiplier,
    "without the multiplier": lambda config: config.head_input_scale / config.head_multiplier,
    "the scale's inverse": lambda config: 1 / config.head_input_scale,
}
"""Factors by which ports multiply the input of the head, or logits."""


def _right(config: TransformerConfig) -> str:
    of_width = ["1/√embed_dim"] if config.head_scale == "embed_dim" else []
    further = [f"{config.head_multiplier:g}"] if config.head_multiplier != 1 else []
    return " · ".join(of_width + further) or "1"


def _cap_faults(config: TransformerConfig) -> Iterator[Fault]:
    yield _headed("logit-cap", "missing", "logits have no softcap", cap=None)
    for cap in KNOWN_CAPS:
        if cap != config.final_softcap:
            yield other_cap(config, cap)
    description = "logits are clipped at the cap instead of softcapped by tanh"
    yield _headed("logit-cap", "clipped", description, capping=lambda x, cap: np.clip(x, -cap, cap))
    description = "logits are tanh(logits / cap), which is not multiplied by the cap again"
    yield _headed("logit-cap", "not scaled back", description, capping=lambda x, cap: np.tanh(x / cap))


def other_cap(config: TransformerConfig, cap: float) -> Fault:
    right = ", and should not be" if config.final_softcap is None else f" instead of {config.final_softcap:g}"
    description = f"logits are softcapped at {cap:.6g}{right}"
    return _headed("logit-cap", f"{cap:.6g}", description, cap, cap=cap)


def _headed(identity: str, variant: str, description: str, value: float | None = None, **settings: Any) -> Fault:
    return Fault(identity, variant, description, formula=_logits, settings=settings, value=value)


def _last(state: WalkState) -> Value:
    return state.taps[f"{state.config.stacks[-1]}.output"]


def _logits(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The logits of an input times another `scale`, with another `cap` or `capping`."""
    x, changes = _last(state), dict[str, Any]()
    if state.config.head_transform:
        x, changes = settings.get("transform", _transformed)(state, x), {"head_transform": False}
    if "scale" in settings:
        x = x * x.dtype.type(settings["scale"](state.config))
        changes |= {"head_scale": "none", "head_multiplier": 1.0}
    cap = settings.get("cap", state.config.final_softcap)
    if "capping" in settings and cap is None:
        raise KeyError("softcap")
    changes["final_softcap"] = None if "capping" in settings else cap
    config = dataclasses.replace(state.config, **changes)
    logits = head(config, nest(shared(config, state.parameters)), x)
    return settings["capping"](logits, cap) if "capping" in settings else logits


def _transformed(state: WalkState, x: Value, activation: Any = None) -> Value:
    config = dataclasses.replace(state.config, activation=activation or state.config.activation)
    return transform_for_head(config, nest(state.parameters), x)


def _normed(state: WalkState, x: Value) -> Value:
    return norm(state.config, parameters_of(state, "head_norm"), x)


def _mapped(state: WalkState, x: Value) -> Value:
    return apply_linear(state, "head_transform", x)


TRANSFORMS: dict[str, tuple[Callable[[WalkState, Value], Value], str]] = {
    "missing": (lambda state, x: x, "the map, the activation and the norm in front of the head are missing"),
    "without activation": (
        lambda state, x: _normed(state, _mapped(state, x)),
        "the map in front of the head has no activation",
    ),
    "without norm": (
        lambda state, x: ACTIVATIONS[state.config.activation](_mapped(state, x)),
        "the norm in front of the head is missing",
    ),
    "norm first": (
        lambda state, x: ACTIVATIONS[state.config.activation](_normed(state, _mapped(state, x))),
        "in front of the head, the activation follows the norm",
    ),
    "norm alone": (_normed, "in front of the head there is the norm alone"),
    **{
        f"by {name}": (partial(_transformed, activation=name), f"the activation in front of the head is {name}")
        for name in ACTIVATIONS
    },
}
"""What ports have in front of the head of masked words."""

Pooled = Callable[[WalkState, Value], Value]


def _projected(state: WalkState, x: Value) -> Value:
    return np.tanh(apply_linear(state, "pooler", x))


def _mean(state: WalkState, x: Value, *, visible: bool) -> Value:
    shown = padding_at(state, "encoder.embedding")[:, 0, 0, :, None] | (not visible)
    return (x * shown).sum(1) / np.maximum(shown.sum(1), 1)


POOLINGS: dict[str, tuple[Pooled, str]] = {
    "without tanh": (lambda state, x: apply_linear(state, "pooler", x[:, 0]), "the pooler has no tanh"),
    "mean": (
        lambda state, x: _projected(state, _mean(state, x, visible=False)),
        "the mean of all positions is pooled, not the first position",
    ),
    "mean of visible": (
        lambda state, x: _projected(state, _mean(state, x, visible=True)),
        "the mean of all positions except padding is pooled, not the first position",
    ),
    "last": (lambda state, x: _projected(state, x[:, -1]), "the last position is pooled, not the first"),
    "unprojected": (lambda state, x: x[:, 0], "the first position is returned without the pooler"),
}


def _pooled(pooled: Pooled, state: WalkState, site: str, value: Value) -> Value:
    return pooled(state, _last(state)).astype(value.dtype)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    if config.head == "logits":
        grid = [(config.final_softcap or KNOWN_CAPS[1]) * 2.0**power for power in range(-4, 7)]
        yield NumericFault(lambda site: site == "logits", grid, partial(other_cap, config))
