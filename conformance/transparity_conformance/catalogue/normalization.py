"""Faults of norms: the value and place of eps, the variance, the kind of norm, and missing or additional norms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import sites
from transparity_conformance.catalogue.fault import (
    Fault,
    Number,
    NumericFault,
    Settings,
    WalkState,
    confused,
    fault,
    made,
    usual,
)
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.arithmetic.functional import silu
from transparity_numpy.mixers.attention import project_heads
from transparity_numpy.norms.norm import norm


@dataclass(frozen=True)
class NormForm:
    centered: bool = True
    """Whether the variance is computed around the mean, unlike RMSNorm's mean of squares."""
    subtracted: bool = True
    """Whether the mean is also subtracted from the input."""
    correction: int = 0
    summed: bool = False
    """Whether squares are summed instead of averaged."""
    outside: bool = False
    """Whether eps is added to the standard deviation instead of the variance."""
    biased: bool = True
    gained: bool = True
    more: float = 0.0
    """The number added to the weight, such as 1 in Gemma."""
    statistics: str = "features"
    """The axes of mean and variance: `features`, `heads` (heads and features), `positions` (positions and features),
    `batch` (batch and positions), or `running` for stored statistics."""
    norm_eps: float = 0.0
    factor: float = 1.0


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site.endswith(".self_attention.query") and not sites.is_normed(config, site):
        for name, source in UNWANTED.items():
            if source is None or config.embedding_norm:
                patch = partial(_normed_first, source)
                yield fault("norm-unwanted", name, patch=patch, also_patched=("key", "value"))
    if has_eps(config, site):
        yield from (other_eps(config, eps) for eps in usual("norm_eps") if eps != config.norm_eps)
    if not sites.is_norm(config, site):
        return
    right = form_at(config, site)
    kind = {"batch": "batch norms", "layer-unbiased": "unbiased layer norms"}.get(config.norm, "layer norms")
    yield from made(kind if right.centered else "RMS norms", config, norm_with)
    if sites.is_head_norm(site):
        yield from made(f"norms of {HEADS[right.statistics]}", config, norm_with)
    if right.statistics == "features" and not sites.is_head_norm(site):
        yield _formed("norm-kind", "over positions", statistics="positions")
    yield from made("every norm", config, norm_with)
    yield from _with_other_parameters(config, site)
    # A scaled input has the same effect as another eps, except with running statistics.
    ties = ("norm-eps",) if config.norm != "batch" or sites.is_head_norm(site) else ()
    for factor in (2.0, 0.5):
        words = {"factor": f"{factor:g}"}
        yield _formed("norm-input-scale", "{factor}", words=words, factor=factor, equivalents=ties)


def _with_other_parameters(config: TransformerConfig, site: str) -> Iterator[Fault]:
    for other in _neighbours(config, site):
        yield from _taken(site.rpartition(".")[2], other)
    for other in _before_the_last(config, site):
        says = f"the parameters of {other} are also used for the last norm"
        yield fault("norm-duplicated", f"{other} for the last", says=says, alter=partial(_from, other))


def _taken(name: str, other: str) -> Iterator[Fault]:
    pair = (min(name, other), max(name, other))
    swapped = f"the parameters of {pair[0]} and {pair[1]} are swapped"
    used = f"the parameters of {other} are also used for {name}"
    beside = lambda site: f"{site.rpartition('.')[0]}.{other}"
    yield from confused("norm", name, pair, swapped, used, alter=partial(_exchanged, pair), taken_from=beside)


HEADS = {"heads": "heads together", "features": "each head"}
"""The name of the right query or key norm, by the axes of its mean and variance."""


def _neighbours(config: TransformerConfig, site: str) -> list[str]:
    """Return the other norms in the same layer or attention, whose parameters a port may use."""
    if sites.is_head_norm(site):
        if config.query_key_norm_over == "projection" and config.key_value_heads < config.num_heads:
            return []  # The two norms have different sizes.
        return ["key_norm" if site.endswith("query_norm") else "query_norm"]
    if site.count(".") != 3:
        return []
    scope, name = site.rpartition(".")[::2]
    return [other for other in _norms_in(config, scope) if other != name]


def _before_the_last(config: TransformerConfig, site: str) -> list[str]:
    """Return the norms in the first and last layers. A port may use the parameters of these norms after all layers."""
    stack, _, tap = site.partition(".")
    if tap != "output":
        return []
    scopes = {f"{stack}.layers.{layer}": None for layer in (0, config.stack_num_layers(stack) - 1)}
    return [f"{scope}.{name}" for scope in scopes for name in _norms_in(config, scope)]


def _norms_in(config: TransformerConfig, scope: str) -> list[str]:
    kinds = ["norm"] + ["post_norm"] * (config.norm_position == "sandwich")
    normed = [sublayer for sublayer in sites.sublayers(config, scope) if sites.is_normed(config, f"{scope}.{sublayer}")]
    names = [f"{sublayer}_{kind}" for sublayer in normed for kind in kinds]
    names = names[:1] if config.branches == "parallel-one-norm" else names
    return names + ["memory_norm"] * (config.memory_norm and "cross_attention_norm" in names)


def form_at(config: TransformerConfig, site: str) -> NormForm:
    more = 1.0 if config.norm_gain == "one-plus-weight" else 0.0
    if config.norm == "rms" or sites.is_head_norm(site) or sites.is_latent(site):
        together = sites.is_head_norm(site) and config.query_key_norm_over == "projection"
        statistics = "heads" if together else "features"
        return NormForm(centered=False, biased=False, more=more, norm_eps=config.norm_eps, statistics=statistics)
    unbiased, statistics = config.norm == "layer-unbiased", "running" if config.norm == "batch" else "features"
    form = NormForm(biased=config.norm_bias, statistics=statistics, more=more, norm_eps=config.norm_eps)
    return dataclasses.replace(form, correction=1, outside=True) if unbiased else form


def other_eps(config: TransformerConfig, eps: float) -> Fault:
    # A norm of s · x with eps equals a norm of x with eps / s², except with running statistics.
    ties = ("norm-input-scale",) if eps > 0 and config.norm != "batch" else ()
    return dataclasses.replace(EPS.fault(config, eps), equivalents=ties)


def has_eps(config: TransformerConfig, site: str) -> bool:
    return sites.is_norm(config, site) or sites.is_latent(site) or sites.is_gated_norm(site)


def norm_with(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    if sites.is_gated_norm(site):
        return gated_norm(settings, state, site, value)
    form = dataclasses.replace(form_at(state.config, site), **settings)
    return _formed_by(form, state, site, sites.norm_input(state, site))


_formed = partial(fault, formula=norm_with)

EPS = Number("norm-eps", "norm_eps", "eps is {v:.3g}{instead}", norm_with, "{v:.3g}")


def _formed_by(form: NormForm, state: WalkState, site: str, x: Value) -> Value:
    parameters = sites.parameters_of(state, sites.norm_scope(site))
    number = x.dtype.type
    x, eps = x * number(form.factor), number(form.norm_eps)
    weight = parameters["weight"] + number(form.more) if form.gained else number(1)
    if np.size(weight) not in (1, x.shape[-1]):  # one weight for each head and feature
        weight = weight.reshape(x.shape[1], 1, x.shape[-1])
    bias = parameters["bias"] if form.biased else number(0)
    if form.statistics == "running":
        centered, variance = x - parameters["running_mean"], parameters["running_var"]
    else:
        axes = {"features": (-1,), "heads": (1, -1), "positions": (1, -1), "batch": (0, 1)}[form.statistics]
        centered = x - x.mean(axes, keepdims=True) if form.centered else x
        count = 1 if form.summed else math.prod(x.shape[axis] for axis in axes) - form.correction
        variance = (centered * centered).sum(axes, keepdims=True) / number(count)
    deviation = np.sqrt(variance) + eps if form.outside else np.sqrt(variance + eps)
    return (centered if form.subtracted else x) / deviation * weight + bias


def normed_input(state: WalkState, site: str, x: Value) -> Value:
    return _formed_by(form_at(state.config, site), state, site, x)


UNWANTED: dict[str, str | None] = {"fresh": None, "the embeddings'": "embedding_norm"}
"""Norms that ports add before an attention without a norm, each with its parameters: None for a new norm."""


def _normed_first(source: str | None, state: WalkState, site: str, value: Value) -> Value:
    scope, _, role = split(site)
    stack, x = scope.partition(".")[0], sites.layer_input(state, scope)
    if source is None:
        one = np.ones(x.shape[-1], x.dtype)
        gain = one * 0 if state.config.norm_gain == "one-plus-weight" else one
        parameters = {"weight": gain, "bias": one * 0, "running_mean": one * 0, "running_var": one}
    else:
        parameters = sites.parameters_of(state, f"{stack}.{source}")
    config = state.config
    heads = config.num_heads if role == "query" else config.key_value_heads
    projected = project_heads(sites.parameters_of(state, site), norm(config, parameters, x), heads, config.projection)
    return projected.astype(value.dtype)


def without_norm(state: WalkState, site: str, value: Value) -> Value:
    return sites.norm_input(state, site)


def _exchanged(pair: tuple[str, str], config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    scope, name = site.rpartition(".")[::2]
    return _from(f"{scope}.{pair[name == pair[0]]}", config, parameters, site)


def _from(other: str, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    kinds = ("weight", "bias", "running_mean", "running_var")
    found = {kind: parameters.get(f"{other}.{kind}") for kind in kinds}
    return {f"{sites.norm_scope(site)}.{kind}": value for kind, value in found.items() if value is not None}


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    yield NumericFault(partial(has_eps, config), [10.0**power for power in range(-14, 2)], partial(other_eps, config))


def gated_norm(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return the output of a recurrence after norm and gate, recomputed with `settings`."""
    own, scope = own_config(state.config, site), site.rpartition(".")[0]
    is_delta = own.mixer == "gated-delta"
    order = settings.get("order", "gate behind" if is_delta else "gate first")
    z = sites.apply_linear(state, f"{scope}.gate", sites.recurrence_input(state, site))
    gate, x = settings.get("gate", silu)(z), state.taps[f"{scope}.context"]
    in_front = order == "gate first" or (order != "gate behind" and not is_delta)
    y = x * gate if in_front else x
    counts = {"all": 1, "head": own.recurrent_heads, "group": own.recurrent_key_heads}
    groups = y.reshape(*y.shape[:2], counts[settings.get("over", "head" if is_delta else "group")], -1)
    size = np.sqrt((groups * groups).mean(axis=-1, keepdims=True) + settings.get("norm_eps", own.norm_eps))
    y = y if order in ("no norm", "weight") else (groups / size).reshape(y.shape)
    gain = settings.get("offset", 0.0) + state.parameters[f"{scope}.gated_norm.weight"]
    y = y if order == "no norm" else y * np.resize(gain, y.shape[-1])
    return (y if in_front else y * gate).astype(value.dtype)


def latent_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if not sites.is_latent(site):
        return
    role = "the queries" if site.endswith("query_latent") else "keys and values"
    yield from made("latent norms", config, norm_with, role=role)
