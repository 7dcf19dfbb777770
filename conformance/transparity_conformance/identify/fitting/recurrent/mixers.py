"""A recurrence taken apart: its features by their role, and its numbers for each head, held to the values it makes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity_conformance.identify.fitting.recurrent.columns import Columns
from transparity_conformance.identify.fitting.recurrent.convolutions import Convolution
from transparity_conformance.identify.fitting.subject import ForeignError
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import sigmoid, silu, softplus
from transparity_numpy.recurrent.recurrence import gated_delta_rule, state_space_rule, unit_length

USUAL = (("query", "key", "value"), ("value", "key", "query"))
"""The orders of Qwen3-Next and of Mamba-2, which are tried first."""


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A sublayer with a recurrence: its convolutions, the maps of its input, and its output."""

    convolutions: Sequence[Convolution]
    maps: Sequence[Linear]
    output: Linear
    begins: int
    """The index of the first operation that may belong to it."""

    @property
    def given(self) -> np.ndarray:
        """What it reads (rows, width)."""
        return self.maps[0].given

    @property
    def result(self) -> tuple[int, np.ndarray]:
        """Its output, with the index of its operation."""
        return self.output.at, self.output.made


@dataclass
class Taken:
    """A recurrence taken apart."""

    fields: dict[str, Any]
    linears: dict[str, Linear]
    parameters: Arrays
    used: set[str]
    """The module's own names."""
    step: np.ndarray
    """The time step in front of its bounds (batch, length, heads)."""
    bounded: np.ndarray


@dataclass(frozen=True, eq=False)
class _Rates:
    """The time steps of all heads, and how states decay by them."""

    features: list[int]
    """Those of the maps that the steps are made of."""
    names: tuple[str, str]
    """Of the bias of the steps, and of the logarithm of the rates."""
    step: np.ndarray
    bounded: np.ndarray
    log_decay: np.ndarray

    @property
    def heads(self) -> int:
        return self.step.shape[2]


@dataclass(frozen=True, eq=False)
class _Ruled:
    """A rule that makes the values of a layer."""

    mixer: str
    places: dict[str, slice]
    """Of queries, keys and values among what the convolutions make."""
    groups: int
    context: np.ndarray
    skip: str | None = None
    beta: list[int] = field(default_factory=list)
    """The features of the maps that beta is made of."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """What is known of a recurrence in front of its rule."""

    one: Recurrence
    columns: Columns
    convolved: list[int]
    operations: Sequence[Operation]
    values: Arrays

    @functools.cached_property
    def made(self) -> np.ndarray:
        """What the convolutions make (batch, length, features)."""
        return np.concatenate([each.made for each in self.one.convolutions], axis=2)

    @property
    def wide(self) -> int:
        """Features of all heads' values."""
        return self.one.output.weight.shape[1]

    @property
    def keys(self) -> int:
        """Features of all heads' keys."""
        return (self.made.shape[2] - self.wide) // 2

    @functools.cached_property
    def seen(self) -> list[np.ndarray]:
        """The values of its operations that may be what is read from the states."""
        shape = (*self.made.shape[:2], self.wide)
        return [each.value.reshape(shape) for each in self.operations if each.value.size == np.prod(shape)]

    def has(self, context: np.ndarray) -> bool:
        return any(is_same(context, each) for each in self.seen)

    def left(self, rates: _Rates) -> list[int]:
        """The features of the maps that are neither convolved nor time steps."""
        return self.columns.without(self.convolved, rates.features)

    def places(self) -> Iterator[dict[str, slice]]:
        """The places that queries, keys and values may have: blocks in any order."""
        widths = {"query": self.keys, "key": self.keys, "value": self.wide}
        for order in dict.fromkeys((*USUAL, *itertools.permutations(widths))):
            ends = itertools.accumulate((widths[role] for role in order), initial=0)
            yield {role: slice(*pair) for role, pair in zip(order, itertools.pairwise(ends), strict=True)}

    def heads_of(self, at: slice, count: int) -> np.ndarray:
        """A part of what the convolutions make, as (batch, count, length, features)."""
        part = self.made[..., at]
        return part.reshape(*part.shape[:2], count, -1).swapaxes(1, 2)

    def layouts(self, heads: int) -> Iterator[tuple[dict[str, slice], int]]:
        """Every place of queries, keys and values, with every number of heads of keys."""
        groups = [each for each in range(1, heads + 1) if heads % each == 0 and self.keys % each == 0]
        yield from itertools.product(self.places(), groups)


def taken_apart(one: Recurrence, operations: Sequence[Operation], values: Arrays) -> Taken:
    """The fields and parameters of a recurrence; raises `ForeignError` with the first part that is not found."""
    layers = [each for each in map(functools.partial(_layer, one, operations, values), _readings(one.maps)) if each]
    if not layers:
        raise ForeignError("The convolutions of a recurrence read no features of the linear maps of its input.")
    steps = [(layer, features, bias) for layer in layers for features, bias in _time_steps(layer)]
    if not steps:
        raise ForeignError(f"{_NEITHER}no time step was found, softplus of a map's features and a bias of each head.")
    every = [(layer, rates) for layer, own, bias in steps for rates in _rates(layer, own, bias)]
    if not every:
        raise ForeignError(
            f"{_NEITHER}no rates were found by which states decay, −exp of a vector times the time step."
        )
    for layer, rates in every:
        for ruled in (_delta(layer, rates), _space(layer, rates)):
            norm = None if ruled is None else _gated_norm(layer, rates, ruled)
            if ruled is not None and norm is not None:
                return _taken(layer, rates, ruled, norm)
    raise ForeignError(f"{_NEITHER}no such rule, with a gated norm behind it, makes what its output map reads.")


def _readings(maps: Sequence[Linear]) -> Iterator[Columns]:
    """The maps as they are; and with one of them without its bias, which may be that of the time steps."""
    yield Columns(maps)
    for place, one in enumerate(maps):
        if one.bias is not None:
            plain = dataclasses.replace(one, made=one.made - one.bias, bias=None, bias_name=None)
            yield Columns([*maps[:place], plain, *maps[place + 1 :]])


def _layer(one: Recurrence, operations: Sequence[Operation], values: Arrays, columns: Columns) -> _Layer | None:
    """What is known of a recurrence with these features of its maps; None if its convolutions read others."""
    given = np.concatenate([each.given for each in one.convolutions], axis=2)
    convolved = columns.matching(given.reshape(-1, given.shape[2]))
    own = operations[one.begins : one.output.at]
    return None if convolved is None else _Layer(one, columns, convolved, own, values)


_NEITHER = "A layer with a convolution over time is neither a gated delta network (Qwen3-Next) nor Mamba-2: "


def _time_steps(layer: _Layer) -> Iterator[tuple[list[int], str]]:
    """Features of the maps to which an operation adds a vector, one for each head, and this vector's name."""
    rows = layer.one.given.shape[0]
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for name, vector in layer.values.items():
        sums = [each.value for each in layer.operations if each.value.shape[-1:] == vector.shape]
        for value in sums if vector.ndim == 1 and layer.wide % len(vector) == 0 else ():
            if value.size != rows * len(vector):
                continue
            steps = layer.columns.matching(value.reshape(rows, -1) - vector)
            if steps is not None and (name, tuple(steps)) not in tried:
                tried.add((name, tuple(steps)))
                yield steps, name


def _rates(layer: _Layer, features: list[int], bias: str) -> Iterator[_Rates]:
    """The rates with which an operation is the logarithm of a decay, and the bounds of the time step in it."""
    raw = layer.columns.made[:, features] + layer.values[bias]
    step = softplus(raw).reshape(*layer.made.shape[:2], -1)
    seen = [each.value.reshape(step.shape) for each in layer.operations if each.value.size == step.size]
    for name, rate in layer.values.items():
        if rate.shape != step.shape[2:] or name == bias:
            continue
        for value in seen:
            bounded = value / -np.exp(rate)
            least, most, near = bounded.min(), bounded.max(), SAME * np.abs(bounded).max()
            within = np.clip(step, least, most)
            inside = (bounded > least + near) & (bounded < most - near)
            if inside.any() and np.abs(bounded - within).max() <= near and np.abs(bounded - step)[inside].max() <= near:
                yield _Rates(features, (bias, name), step, within, within * -np.exp(rate))
                break


def _delta(layer: _Layer, rates: _Rates) -> _Ruled | None:
    """The gated delta rule; beside the gate, the first or the last of the features that are left are those of beta."""
    left, heads = layer.left(rates), rates.heads
    if len(left) != layer.wide + heads:
        return None
    for beta in (left[-heads:], left[:heads]):
        strength = sigmoid(layer.columns.made[:, beta]).reshape(rates.step.shape)
        for at, groups in layer.layouts(heads):
            query, key = (unit_length(layer.heads_of(at[role], groups)) for role in ("query", "key"))
            context = _read(gated_delta_rule, (query, key, layer.heads_of(at["value"], heads)), rates, strength)
            if layer.has(context):
                return _Ruled("gated-delta", at, groups, context, beta=beta)
    return None


def _space(layer: _Layer, rates: _Rates) -> _Ruled | None:
    """The state-space rule, with a skip."""
    if len(layer.left(rates)) != layer.wide:
        return None
    vectors = {name: each for name, each in layer.values.items() if each.shape == (rates.heads,)}
    for at, groups in layer.layouts(rates.heads):
        query, key = (layer.heads_of(at[role], groups) for role in ("query", "key"))
        value = layer.heads_of(at["value"], rates.heads)
        read = _read(state_space_rule, (query, key, value), rates, rates.bounded)
        for name in [each for each in vectors if each not in rates.names]:
            skipped = (value.swapaxes(1, 2) * vectors[name][:, np.newaxis]).reshape(read.shape)
            if layer.has(read + skipped):
                return _Ruled("state-space", at, groups, read + skipped, name)
    return None


def _read(
    rule: Callable[..., tuple[np.ndarray, np.ndarray]],
    parts: tuple[np.ndarray, np.ndarray, np.ndarray],
    rates: _Rates,
    strength: np.ndarray,
) -> np.ndarray:
    """What a rule reads from its states (batch, length, features), for queries, keys and values of their heads."""
    query, key, value = (each.repeat(rates.heads // each.shape[1], axis=1) for each in parts)
    state = np.zeros((*query.shape[:2], query.shape[3], value.shape[3]))
    read, _ = rule(query, key, value, rates.log_decay.swapaxes(1, 2), strength.swapaxes(1, 2), state)
    return read.swapaxes(1, 2).reshape(read.shape[0], read.shape[2], -1)


def _gate(layer: _Layer, rates: _Rates, ruled: _Ruled) -> list[int]:
    """The features of the maps that the gate is made of: those that nothing else is."""
    return [each for each in layer.left(rates) if each not in ruled.beta]


def _gated_norm(layer: _Layer, rates: _Rates, ruled: _Ruled) -> str | None:
    """The name of the gains with which the norm and the gate of the context make what the output reads; the size that
    each row is divided by is left open, for its eps is that of all norms."""
    context, is_delta = ruled.context, ruled.mixer == "gated-delta"
    gate = silu(layer.columns.made[:, _gate(layer, rates, ruled)]).reshape(context.shape)
    count = rates.heads if is_delta else ruled.groups
    given = layer.one.output.given.reshape(*context.shape[:2], count, -1)
    for name, gain in layer.values.items():
        if gain.shape != (layer.wide // count if is_delta else layer.wide,):
            continue
        groups = (context * gate * np.tile(gain, layer.wide // len(gain))).reshape(given.shape)
        factors = (groups * given).sum(-1, keepdims=True) / (groups * groups).sum(-1, keepdims=True)
        if (factors > 0).all() and is_same(groups * factors, given):
            return name
    return None


def _taken(layer: _Layer, rates: _Rates, ruled: _Ruled, norm: str) -> Taken:
    """The fields and parameters by our names."""
    one, values, (bias, rate) = layer.one, layer.values, rates.names
    chosen = {role: layer.convolved[at] for role, at in ruled.places.items()}
    chosen |= {"decay": rates.features, "gate": _gate(layer, rates, ruled)} | (
        {"beta": ruled.beta} if ruled.beta else {}
    )
    linears = {role: layer.columns.linear(features) for role, features in chosen.items()} | {"output": one.output}
    parameters = {"time_step_bias": values[bias], "log_rate": values[rate], "gated_norm.weight": values[norm]}
    parameters |= {} if ruled.skip is None else {"skip": values[ruled.skip]}
    convolutions = _kernels(one.convolutions, ruled.places)
    key = ruled.places["key"]
    fields = {
        "mixer": ruled.mixer,
        "recurrent_heads": rates.heads,
        "recurrent_key_heads": ruled.groups,
        "recurrent_key_dim": (key.stop - key.start) // ruled.groups,
        "recurrent_value_dim": layer.wide // rates.heads,
        "convolution_width": one.convolutions[0].kernel.shape[1],
        "convolution_bias": "key_convolution.bias" in convolutions,
        "recurrent_bias": any(each.bias is not None for each in linears.values()),
    }
    used = {bias, rate, norm, *(name for each in one.convolutions for name in each.names)}
    used |= {name for each in one.maps for name in (each.name, each.bias_name) if name is not None}
    used |= set() if ruled.skip is None else {ruled.skip}
    return Taken(fields, linears, parameters | convolutions, used, rates.step, rates.bounded)


def _kernels(convolutions: Sequence[Convolution], places: Mapping[str, slice]) -> Arrays:
    """The kernels of queries, keys and values, and their biases, if any convolution has one."""
    kernel = np.concatenate([each.kernel for each in convolutions])
    found = {f"{role}_convolution.weight": kernel[at] for role, at in places.items()}
    if all(each.bias is None for each in convolutions):
        return found
    biases = [np.zeros(len(each.kernel)) if each.bias is None else each.bias for each in convolutions]
    bias = np.concatenate(biases)
    return found | {f"{role}_convolution.bias": bias[at] for role, at in places.items()}
