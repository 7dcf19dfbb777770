"""Faults of the output head: the scale, the softcap, the pooling and the transformation before the head."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.config.transformer_config import Pooling
from transparity.parameters import shared
from transparity_conformance.catalogue.fault import (
    Fault,
    Number,
    NumericFault,
    Settings,
    WalkState,
    fault,
    is_same,
    made,
    row,
    usual,
)
from transparity_conformance.catalogue.sites import Value, apply_linear, parameters_of
from transparity_conformance.oracle.undetermined import padding_at
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.heads import HEADS
from transparity_numpy.heads.logits import transform_for_head
from transparity_numpy.heads.pooled import POOLERS as ACTIVATED
from transparity_numpy.heads.pooled import pool
from transparity_numpy.norms.norm import norm


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site == "pooled":
        for name, pooled in POOLINGS.items():
            is_possible = config.token_inputs and (config.eos_id is not None or name not in OF_END)
            if name != config.pooling and (is_possible or name not in (*OF_END, "largest")):
                yield fault("pooling", name, words={"right": RIGHT[config.pooling]}, patch=partial(_pooled, pooled))
        if config.final_norm:
            words = {"right": RIGHT[config.pooling]}
            yield fault("pooling", "mean before the norm", words=words, patch=_pooled_before_norm)
    if site != "logits":
        return
    for name, pooler in POOLERS.items() if config.has_pooler else ():
        if name != config.pooler:
            yield _headed("pooling", name, pooler=pooler)
    if config.head_transform:
        for name, transform in TRANSFORMS.items():
            if name != f"by {config.activation}":
                yield _headed("head-transform", name, transform=transform)
    if config.head != "logits":
        return
    known, of_width = [config.head_input_scale], ["1/√embed_dim"] * (config.head_scale == "embed_dim")
    right = " · ".join([*of_width, *[f"{config.head_multiplier:g}"] * (config.head_multiplier != 1)]) or "1"
    for name, scale in SCALES.items() if config.tied_head or config.head_input_scale != 1 else ():
        if not any(is_same(scale(config), each) for each in known):
            known.append(scale(config))
            is_last = not config.head_bias and config.final_softcap is None
            what = "logits are" if is_last else "the input of the head is"
            says = f"{what} multiplied by {scale(config):.4g} ({name}) instead of {right}"
            if scale(config) == 1:
                says = f"{what} not multiplied by {right}"
            yield _headed("head-scale", name, says=says, scale=scale)
    yield from made(CAP_MISSING, config, _logits)
    yield from CAP.usual(config)
    yield from made(CAPS, config, _logits)


SCALES: dict[str, Callable[[TransformerConfig], float]] = {
    "1 (none)": lambda config: 1.0,
    "√embed_dim": lambda config: config.head_multiplier * config.embed_dim**0.5,
    "1/√embed_dim": lambda config: config.head_multiplier * config.embed_dim**-0.5,
    "the multiplier alone": lambda config: config.head_multiplier,
    "without the multiplier": lambda config: config.head_input_scale / config.head_multiplier,
    "the scale's inverse": lambda config: 1 / config.head_input_scale,
}
"""Factors by which ports multiply the head's input."""


def _logits(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    x, changes = state.taps["pooled"] if state.config.is_pooled else _output(state), dict[str, Any]()
    if state.config.has_pooler:
        x = settings.get("pooler", partial(_through_pooler, state.config.pooler))(state, x)
        changes["pooler"] = "none"
    if state.config.head_transform:
        x = settings.get("transform", _transformed)(state, x)
        changes["head_transform"] = False
    if "scale" in settings:
        x = x * x.dtype.type(settings["scale"](state.config))
        changes |= {"head_scale": "none", "head_multiplier": 1.0}
    cap = settings.get("final_softcap", state.config.final_softcap)
    if "capping" in settings and cap is None:
        raise KeyError("softcap")
    changes["final_softcap"] = None if "capping" in settings else cap
    config = dataclasses.replace(state.config, **changes)
    logits = HEADS[config.head](config, nest(shared(config, state.parameters)), x)
    return settings["capping"](logits, cap) if "capping" in settings else logits


_headed = partial(fault, formula=_logits)


def _transformed(state: WalkState, x: Value, activation: Any = None) -> Value:
    config = dataclasses.replace(state.config, activation=activation or state.config.activation)
    return transform_for_head(config, nest(state.parameters), x)


def _normed(state: WalkState, x: Value) -> Value:
    return norm(state.config, parameters_of(state, "head_norm"), x)


def _mapped(state: WalkState, x: Value) -> Value:
    return apply_linear(state, "head_transform", x)


TRANSFORMS: dict[str, Callable[[WalkState, Value], Value]] = {
    "missing": lambda state, x: x,
    "without activation": lambda state, x: _normed(state, _mapped(state, x)),
    "without norm": lambda state, x: ACTIVATIONS[state.config.activation](_mapped(state, x)),
    "norm first": lambda state, x: ACTIVATIONS[state.config.activation](_normed(state, _mapped(state, x))),
    "norm alone": _normed,
    **{f"by {name}": partial(_transformed, activation=name) for name in ACTIVATIONS},
}
"""Transformations before a masked language model's head."""


def _through_pooler(activation: str, state: WalkState, x: Value) -> Value:
    return ACTIVATED[activation](apply_linear(state, "pooler", x))


POOLERS: dict[str, Callable[[WalkState, Value], Value]] = {
    "unprojected": lambda state, x: x,
    "activation alone": lambda state, x: ACTIVATED[state.config.pooler](x),
    "without activation": lambda state, x: apply_linear(state, "pooler", x),
    **{name: partial(_through_pooler, name) for name in ACTIVATED},
}
"""Transformations after pooling."""


def _visible(state: WalkState) -> Value:
    return padding_at(state, f"{state.config.stacks[-1]}.embedding")[:, 0, 0, :]


def _output(state: WalkState) -> Value:
    return state.taps[f"{state.config.stacks[-1]}.output"]


def _tokens(state: WalkState) -> np.ndarray | None:
    return state.inputs.get(state.config.input_names[-1]) if state.config.token_inputs else None


def _ends(state: WalkState) -> np.ndarray:
    return np.asarray(_tokens(state)) == state.config.eos_id


Pooled = tuple[Pooling, bool] | Callable[[WalkState], np.ndarray]
"""(pooling, whether padding is included), or a function that returns each row's position."""


def _pooled_before_norm(state: WalkState, site: str, value: Value) -> Value:
    stack, config = state.config.stacks[-1], dataclasses.replace(state.config, pooling="mean")
    last = state.taps[f"{stack}.layers.{state.config.stack_num_layers(stack) - 1}.output"]
    mean = pool(config, last, _visible(state), _tokens(state))
    return norm(state.config, parameters_of(state, f"{stack}.final_norm"), mean).astype(value.dtype)


def _pooled(pooled: Pooled, state: WalkState, site: str, value: Value) -> Value:
    x = _output(state)
    if callable(pooled):
        return x[np.arange(len(x)), pooled(state)].astype(value.dtype)
    pooling, sees_all = pooled
    config = dataclasses.replace(state.config, pooling=pooling)
    return pool(config, x, _visible(state) | sees_all, _tokens(state)).astype(value.dtype)


RIGHT: dict[Pooling, str] = {
    "first": "the first position",
    "mean": "the mean of the visible positions",
    "last": "the last visible position",
    "eos": "the position of the first end token",
    "largest": "the first position of the largest token id",
}

POOLINGS: dict[str, Pooled] = {
    **{name: (name, False) for name in RIGHT},
    "mean of all": ("mean", True),
    "last of all": ("last", True),
    "last by count": lambda state: np.maximum(_visible(state).sum(1), 1) - 1,
    "first visible": lambda state: _visible(state).argmax(1),
    "before eos": lambda state: np.maximum(_ends(state).argmax(1) - 1, 0),
    "last eos": lambda state: _ends(state).shape[1] - 1 - _ends(state)[:, ::-1].argmax(1),
}

OF_END = ("eos", "last eos", "before eos")
"""Poolings that depend on the end token."""


CAP = Number("logit-cap", "final_softcap", "logits are softcapped at {v:.6g}{instead}", _logits)
_cap = partial(row, "logit-cap", when=lambda c: c.final_softcap is not None)
CAP_MISSING = (_cap("missing", final_softcap=None),)
CAPS = (
    _cap("clipped", capping=lambda x, cap: np.clip(x, -cap, cap)),
    _cap("not scaled back", capping=lambda x, cap: np.tanh(x / cap)),
)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    if config.head == "logits":
        right = config.final_softcap or usual("final_softcap")[1]
        yield CAP.fitted(config, lambda site: site == "logits", 2.0, range(-4, 7), right)
