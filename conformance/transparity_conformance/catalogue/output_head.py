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
    factors,
    fault,
    is_same,
    made,
    usual,
    with_fields,
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
        yield from made("poolings", config, __name__, right=RIGHT[config.pooling])
    if site != "logits":
        return
    if config.has_pooler:
        yield from made("poolers", config, _logits)
    if config.head_transform:
        yield from made("head transforms", config, _logits)
    if config.head != "logits":
        return
    known, of_width = [config.head_input_scale], ["1/√embed_dim"] * (config.head_scale == "embed_dim")
    right = " · ".join([*of_width, *[f"{config.head_multiplier:g}"] * (config.head_multiplier != 1)]) or "1"
    for name, scale in factors("head-scale").items() if config.tied_head or config.head_input_scale != 1 else ():
        if not any(is_same(scale(config), each) for each in known):
            known.append(scale(config))
            is_last = not config.head_bias and config.final_softcap is None
            what = "logits are" if is_last else "the input of the head is"
            says = f"{what} multiplied by {scale(config):.4g} ({name}) instead of {right}"
            if scale(config) == 1:
                says = f"{what} not multiplied by {right}"
            yield _headed("head-scale", name, says=says, scale=scale)
    yield from made("softcaps of logits", config, _logits)
    yield from CAP.usual(config)


def _logits(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    x, config, changes = _output(state), with_fields(state.config, settings), dict[str, Any]()
    if config.is_pooled:
        x = state.taps["pooled"]
    if state.config.has_pooler:
        x = settings.get("through", partial(through_pooler, state.config.pooler))(state, x)
        changes["pooler"] = "none"
    if state.config.head_transform:
        x = settings.get("transform", transformed)(state, x)
        changes["head_transform"] = False
    if "scale" in settings:
        x = x * x.dtype.type(settings["scale"](state.config))
        changes |= {"head_scale": "none", "head_multiplier": 1.0}
    if "capping" in settings:
        changes["final_softcap"] = None
        if config.final_softcap is None:
            raise KeyError("softcap")
    head = with_fields(config, changes)
    logits = HEADS[head.head](head, nest(shared(head, state.parameters)), x)
    return settings["capping"](logits, config.final_softcap) if "capping" in settings else logits


_headed = partial(fault, formula=_logits)


def transformed(state: WalkState, x: Value, activation: Any = None) -> Value:
    config = dataclasses.replace(state.config, activation=activation or state.config.activation)
    return transform_for_head(config, nest(state.parameters), x)


def activated(state: WalkState, x: Value) -> Value:
    return ACTIVATIONS[state.config.activation](x)


def normed(state: WalkState, x: Value) -> Value:
    return norm(state.config, parameters_of(state, "head_norm"), x)


def mapped(state: WalkState, x: Value) -> Value:
    return apply_linear(state, "head_transform", x)


def through_pooler(activation: str, state: WalkState, x: Value) -> Value:
    return ACTIVATED[activation](apply_linear(state, "pooler", x))


def visible(state: WalkState) -> Value:
    return padding_at(state, f"{state.config.stacks[-1]}.embedding")[:, 0, 0, :]


def _output(state: WalkState) -> Value:
    return state.taps[f"{state.config.stacks[-1]}.output"]


def _tokens(state: WalkState) -> np.ndarray | None:
    return state.inputs.get(state.config.input_names[-1]) if state.config.token_inputs else None


def ends(state: WalkState) -> np.ndarray:
    return np.asarray(_tokens(state)) == state.config.eos_id


def has_end(config: TransformerConfig) -> bool:
    return bool(config.token_inputs) and config.eos_id is not None


Pooled = tuple[Pooling, bool] | Callable[[WalkState], np.ndarray]
"""(pooling, whether padding is included), or a function that returns each row's position."""


def pooled_before_norm(state: WalkState, site: str, value: Value) -> Value:
    stack, config = state.config.stacks[-1], dataclasses.replace(state.config, pooling="mean")
    last = state.taps[f"{stack}.layers.{state.config.stack_num_layers(stack) - 1}.output"]
    mean = pool(config, last, visible(state), _tokens(state))
    return norm(state.config, parameters_of(state, f"{stack}.final_norm"), mean).astype(value.dtype)


def pooled(way: Pooled, state: WalkState, site: str, value: Value) -> Value:
    x = _output(state)
    if callable(way):
        return x[np.arange(len(x)), way(state)].astype(value.dtype)
    pooling, sees_all = way
    config = dataclasses.replace(state.config, pooling=pooling)
    return pool(config, x, visible(state) | sees_all, _tokens(state)).astype(value.dtype)


RIGHT: dict[Pooling, str] = {
    "first": "the first position",
    "mean": "the mean of the visible positions",
    "last": "the last visible position",
    "eos": "the position of the first end token",
    "largest": "the first position of the largest token id",
}

CAP = Number("logit-cap", "final_softcap", "logits are softcapped at {v:.6g}{instead}", _logits)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    if config.head == "logits":
        right = config.final_softcap or usual("final_softcap")[1]
        yield CAP.fitted(config, lambda site: site == "logits", 2.0, range(-4, 7), right)
