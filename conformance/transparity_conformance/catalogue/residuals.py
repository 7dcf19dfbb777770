"""Faults in combining the parts: residuals, the activation, its gate, the place of the norms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, WalkState, fault
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS, activated, gate_faults, is_activated
from transparity_conformance.catalogue.normalization import normed, normed_input
from transparity_conformance.catalogue.sites import (
    Value,
    added,
    branch_end,
    is_normed,
    layer_input,
    output_of,
    stream,
    sublayer_input,
    sublayer_of,
    sublayers,
)
from transparity_conformance.oracle.budgets import rounded_to
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import split
from transparity_numpy.arithmetic.functional import log_softmax, softmax


def whole_model_faults(config: TransformerConfig) -> Iterator[Fault]:
    if config.norm_position == "sandwich":
        yield fault("norm-placement", "pre", fields={"norm_position": "pre"})
    others = [place for place in ("pre", "post", "post-branch") if place != config.norm_position]
    is_usual = config.branches == "sequential" and all(own.attention_norm for own in config.layer_kinds.values())
    others = others if is_usual else []
    for other in others[1:] if config.norm_position == "sandwich" else others:
        description = f"norms are {PLACES[other]}, not {PLACES[config.norm_position]}"
        yield fault("norm-placement", other, says=description, fields={"norm_position": other})
        if config.final_norm:
            description += ", without the final norm"
            fields = {"norm_position": other, "final_norm": False}
            yield fault("norm-placement", f"{other}, no final norm", says=description, fields=fields)
    for name, bits in WEIGHT_BITS.items():
        yield fault("low-precision", f"{name} weights", alter=partial(_rounded, bits))


PLACES = {
    "pre": "before the sublayers (pre-norm)",
    "post": "after the residual is added (post-norm)",
    "sandwich": "before and after the sublayers",
    "post-branch": "after the sublayers, before the residual is added",
}
"""Places of norms in words."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    sublayer = split(site)[1]
    if is_activated(config, site):
        for name, (function, description) in ACTIVATIONS.items():
            if name != config.activation:
                instead = f"{description} instead of {ACTIVATIONS[config.activation][1]}"
                yield fault("activation", name, says=instead, formula=activated, function=function)
        if config.norm_position in ("post", "post-branch"):
            yield fault("residual-source", "parallel", formula=activated, source=layer_input)
        if config.branches == "parallel-one-norm":
            behind = partial(_behind_attention, "self_attention_norm")
            yield fault("residual-source", "sequential", formula=activated, source=behind)
        yield from gate_faults(config) if config.gated else ()
    if sublayer and site == branch_end(config, ".".join(sublayer_of(site))):
        yield from _multiplier_faults(config.residual_multiplier)
        yield from _residual_faults(config, site)
    if sublayer.endswith("_norm") and sublayer != "memory_norm" and config.norm_position == "post":
        yield fault("norm-placement", "before the residual", patch=_normed_output)
    if sublayer == "feed_forward_norm" and config.branches == "parallel":
        yield fault("residual-source", "sequential", patch=_normed_behind_attention)
    elif sublayer == "feed_forward_norm" and config.norm_position in ("pre", "sandwich"):
        yield fault("residual-source", "parallel", patch=_normed_layer_input)
    if re.fullmatch(r"\w+\.layers\.\d+\.output", site):
        yield fault("layer-missing", "skipped", patch=_skipped)
    if site == "logits" and config.head in ("logits", "classes"):
        for name, shifted in LOGIT_SHIFTS.items():
            yield fault("logit-shift", name, patch=partial(_shifted, shifted))
        yield fault("probabilities", "softmax", patch=partial(_shifted, softmax))


def _skipped(state: WalkState, site: str, value: Value) -> Value:
    return layer_input(state, site.removesuffix(".output"))


PARALLEL = "the feed-forward layer is parallel to the attention: it reads the layer's input"

SEQUENTIAL = "the feed-forward layer gets the stream after the attention, not the layer's input"

LOGIT_SHIFTS: dict[str, Callable[[Value], Value]] = {
    "log-softmax": log_softmax,
    "largest 0": lambda x: x - x.max(-1, keepdims=True),
    "mean 0": lambda x: x - x.mean(-1, keepdims=True),
}


def _shifted(change: Callable[[Value], Value], state: WalkState, site: str, value: Value) -> Value:
    return change(value)


def _multiplier_faults(right: float) -> Iterator[Fault]:
    for name, factor in MULTIPLIERS.items() if right != 1 else ():
        yield fault("residual-multiplier", name, words={"right": right}, downstream=partial(_multiplied, factor))


def _residual_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    sublayer = sublayer_of(site)[1]
    if config.branches != "sequential" and sublayer == "self_attention":
        return  # both branches share the residual
    if config.norm_position in ("pre", "sandwich") and is_normed(config, site):
        description = "the residual adds the normalized tensor instead of the one before the norm"
        yield _residual("normalised", description, sublayer_input)
    yield _residual("missing", "the residual is missing", lambda state, scope, name: 0)
    yield fault("residual-source", "twice", downstream=_residual_twice)
    if sublayer in ("feed_forward", "cross_attention") and config.branches == "sequential":
        description = "the residual adds the layer's input instead of the residual stream before this sublayer"
        yield _residual("layer input", description, lambda state, scope, name: stream(state, scope, "self_attention"))


MULTIPLIERS: dict[str, Callable[[float], float]] = {
    "missing": lambda right: 1.0,
    "inverse": lambda right: 1 / right,
    "twice": lambda right: right**2,
}


def _multiplied(factor: Callable[[float], float], state: WalkState, site: str, flow: Value) -> Value:
    right = state.config.residual_multiplier
    return flow * flow.dtype.type(factor(right) / right)


def _residual(variant: str, description: str, source: Callable[[WalkState, str, str], Value]) -> Fault:
    """Return the fault of a sublayer whose residual is the value that `source` returns."""

    def downstream(state: WalkState, site: str, flow: Value) -> Value:
        scope, sublayer = sublayer_of(site)
        change = source(state, scope, sublayer) - stream(state, scope, sublayer)
        return flow + change / flow.dtype.type(state.config.residual_multiplier)

    return fault("residual-source", variant, says=description, downstream=downstream)


WEIGHT_BITS = {"bfloat16": "bfloat16", "float16": "float16", "TF32": "tf32"}


def _rounded(kind: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    return {name: rounded_to(value, kind) for name, value in parameters.items()}


def _residual_twice(state: WalkState, site: str, flow: Value) -> Value:
    scope, sublayer = sublayer_of(site)
    return flow + stream(state, scope, sublayer) / flow.dtype.type(state.config.residual_multiplier)


def _normed_output(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    sublayer = name.removesuffix("_norm")
    x, out = stream(state, scope, sublayer), state.taps[output_of(state.config, f"{scope}.{sublayer}")]
    # With this output, the norm's input after the residual is only the sublayer's addition.
    state.taps[output_of(state.config, f"{scope}.{sublayer}")] = out - x / x.dtype.type(
        state.config.residual_multiplier
    )
    behind = normed(state, site)
    state.taps[output_of(state.config, f"{scope}.{sublayer}")] = out
    return x + behind


def _behind_attention(norm: str, state: WalkState, scope: str) -> Value:
    """Return the stream after the attention of a layer with parallel branches, through a norm."""
    x = added(state, layer_input(state, scope), state.taps[f"{scope}.self_attention.output"])
    return normed_input(state, f"{scope}.{norm}", x)


def _normed_behind_attention(state: WalkState, site: str, value: Value) -> Value:
    return _behind_attention("feed_forward_norm", state, site.rpartition(".")[0])


def _normed_layer_input(state: WalkState, site: str, value: Value) -> Value:
    scope, name = site.rpartition(".")[::2]
    before = [each for each in sublayers(state.config, scope) if f"{each}_norm" != name]
    ends = {end: state.taps[end] for end in (branch_end(state.config, f"{scope}.{each}") for each in before)}
    state.taps.update({end: np.zeros_like(added) for end, added in ends.items()})
    behind = normed(state, site)
    state.taps.update(ends)
    return behind
