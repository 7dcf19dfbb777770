"""Assign the input features of recurrences to roles, such as query or gate, until the reference computes the result."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.taps import recording
from transparity_conformance.checkpoints.families.recurrent import LINEAR
from transparity_conformance.checkpoints.tables.kinds import FULL, repeating
from transparity_conformance.identify.fitting.subject import ForeignError
from transparity_conformance.identify.fitting.values.convolutions import Convolution
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.linears import Columns, Linear, Sublayer
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same, settled
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import nest, softplus
from transparity_numpy.mixers import MIXERS
from transparity_numpy.state.context import Context

USUAL = (("query", "key", "value"), ("value", "key", "query"))
"""The orders in Qwen3-Next and in Mamba-2, which are tried first."""


@dataclass(frozen=True, eq=False)
class Recurrence(Sublayer):
    convolutions: Sequence[Convolution]
    read: Sequence[Linear]
    """All linear maps of the input."""

    @property
    def tensor(self) -> str:
        return self.maps["output"].name

    @functools.cached_property
    def kernel(self) -> np.ndarray:
        return np.concatenate([each.kernel for each in self.convolutions])

    @functools.cached_property
    def bias(self) -> np.ndarray | None:
        biases = [np.zeros(len(each.kernel)) if each.bias is None else each.bias for each in self.convolutions]
        return np.concatenate(biases) if any(each.bias is not None for each in self.convolutions) else None

    @property
    def used(self) -> set[str]:
        maps = {name for each in self.read for name in (each.name, each.bias_name) if name is not None}
        return maps.union(*(each.names for each in self.convolutions))


@dataclass(frozen=True, eq=False)
class _Rates:
    """The time steps (batch, length, heads) before and after clipping."""

    features: list[int]
    """The features from which the time steps are computed."""
    vectors: dict[str, str]
    step: np.ndarray
    bounded: np.ndarray


@dataclass(frozen=True, eq=False)
class _Reading:
    """A possible reading of a recurrence: its fields, and its parameters by the reference's names."""

    fields: Mapping[str, Any]
    maps: Mapping[str, Linear]
    parameters: Arrays
    vectors: Mapping[str, str]
    rates: _Rates

    def written(self, found: FoundFields, name: str) -> None:
        for role, linear in self.maps.items():
            found.put(f"{name}.{role}", linear)
        found.parameters |= {f"{name}.{leaf}": value for leaf, value in self.parameters.items()}
        found.used |= set(self.vectors.values())

    def context(self, found: FoundFields, rows: int) -> np.ndarray:
        """Return the input of the output map, as the reference computes it for the first `rows` rows."""
        bounds = {"time_step_min": self.rates.bounded.min(), "time_step_max": self.rates.bounded.max()}
        config, own = found.config(**{**self.fields, **bounds}), FoundFields()
        self.written(own, "layer")
        batch, length, _ = self.rates.step.shape
        x = self.maps["decay"].given.reshape(batch, length, -1)[:rows]
        made: Arrays = {}
        mask, visible = np.ones((1, 1, 1, 1), bool), np.ones(x.shape[:2], bool)
        given = Context(mask, np.arange(length)[None], visible, tap=recording(made))
        MIXERS[config.mixer_name](config, nest(own.parameters)["layer"], x, given)
        return made["gated_context"]


def _read(found: FoundFields, one: Recurrence, operations: Sequence[Operation], values: Arrays) -> _Reading:
    own = operations[min(each.at for each in one.read) : one.maps["output"].at]
    left = {name: value for name, value in values.items() if name not in found.used}
    given = np.concatenate([each.given for each in one.convolutions], axis=2)
    for columns in _readings(one.read):
        convolved = columns.matching(given.reshape(-1, given.shape[2]))
        for rates in _rates(one, columns, own, left) if convolved is not None else ():
            expected = one.maps["output"].given.reshape(*rates.step.shape[:2], -1)
            for reading in _assigned(one, columns, convolved or [], rates, left):
                if all(is_same(reading.context(found, count), expected[:count]) for count in (1, len(expected))):
                    return reading
    raise ForeignError(
        f"The recurrence with the convolution of {one.convolutions[0].names[0]} was not recognized; expected "
        "a gated delta network (Qwen3-Next) or Mamba-2, followed by a gated norm."
    )


def _readings(maps: Sequence[Linear]) -> Iterator[Columns]:
    """Yield the linear maps, and then variants without one bias, which may belong to the time steps."""
    yield Columns(maps)
    for place, one in enumerate(maps):
        if one.bias is not None:
            plain = dataclasses.replace(one, made=one.made - one.bias, bias=None, bias_name=None)
            yield Columns([*maps[:place], plain, *maps[place + 1 :]])


def _rates(one: Recurrence, columns: Columns, operations: Sequence[Operation], values: Arrays) -> Iterator[_Rates]:
    """Yield features that may be time steps. One operation must add to these features a vector with one number per
    head. Another operation must multiply the time step, which may be clipped, by −exp(rate)."""
    rows, wide = len(one.given), one.maps["output"].weight.shape[1]
    tried: set[tuple[str, tuple[int, ...]]] = set()
    for (bias, vector), operation in itertools.product(values.items(), operations):
        is_like = vector.ndim == 1 and wide % len(vector) == 0 and operation.value.size == rows * len(vector)
        if not is_like or operation.value.shape[-1:] != vector.shape:
            continue
        features = columns.matching(operation.value.reshape(rows, -1) - vector)
        if features is None or (bias, tuple(features)) in tried:
            continue
        tried.add((bias, tuple(features)))
        step = softplus(columns.made[:, features] + vector).reshape(*one.convolutions[0].made.shape[:2], -1)
        seen = [each.value.reshape(step.shape) for each in operations if each.value.size == step.size]
        for name, rate in values.items():
            every = [value / -np.exp(rate) for value in seen] if rate.shape == vector.shape and name != bias else []
            for bounded in (each for each in every if _is_clipped(step, each)):
                vectors = {"dt_bias": bias, "A_log": name}
                yield _Rates(features, vectors, step, np.clip(step, bounded.min(), bounded.max()))
                break


def _is_clipped(step: np.ndarray, bounded: np.ndarray) -> bool:
    """Return whether `bounded` is `step`, clipped to the range of `bounded`; some elements must not be clipped."""
    least, most, near = bounded.min(), bounded.max(), SAME * np.abs(bounded).max()
    inside = (bounded > least + near) & (bounded < most - near)
    wrong = np.abs(bounded - np.clip(step, least, most)).max(), np.abs(bounded - step)[inside].max(initial=0)
    return bool(inside.any() and max(wrong) <= near)


def _assigned(
    one: Recurrence, columns: Columns, convolved: list[int], rates: _Rates, values: Arrays
) -> Iterator[_Reading]:
    """Yield every assignment of the remaining features and vectors to roles. In a gated delta network, these features
    are the gate, with beta before or after it. In Mamba-2, they are only the gate, and a vector is the skip."""
    heads, wide = rates.step.shape[2], one.maps["output"].weight.shape[1]
    left = columns.without(convolved, rates.features)
    betas, mixer, skips = [left[-heads:], left[:heads]], "gated-delta", [""]
    if len(left) == wide:
        betas, mixer = [[]], "state-space"
        skips = [each for each, x in values.items() if x.shape == (heads,) and each not in rates.vectors.values()]
    elif len(left) != wide + heads:
        return
    keys = (len(convolved) - wide) // 2
    widths = {"query": keys, "key": keys, "value": wide}
    orders = dict.fromkeys((*USUAL, *itertools.permutations(widths)))
    groups = [each for each in range(1, heads + 1) if heads % each == 0 and keys % each == 0]
    gains = [name for name, x in values.items() if x.shape == (wide // heads if mixer == "gated-delta" else wide,)]
    for beta, order, shared, skip, gain in itertools.product(betas, orders, groups, skips, gains):
        ends = itertools.accumulate((widths[role] for role in order), initial=0)
        places = {role: slice(*pair) for role, pair in zip(order, itertools.pairwise(ends), strict=True)}
        roles = {role: convolved[at] for role, at in places.items()} | {"decay": rates.features}
        roles |= {"gate": [each for each in left if each not in beta]} | ({"beta": beta} if beta else {})
        vectors = {**rates.vectors, "gated_norm.weight": gain} | ({"D": skip} if skip else {})
        parameters = {role: values[name] for role, name in vectors.items()}
        parameters |= {f"{role}_convolution.weight": one.kernel[at] for role, at in places.items()}
        if one.bias is not None:
            parameters |= {f"{role}_convolution.bias": one.bias[at] for role, at in places.items()}
        maps = {role: columns.linear(features) for role, features in roles.items()} | {"output": one.maps["output"]}
        fields = {
            "mixer": mixer,
            "recurrent_heads": heads,
            "recurrent_key_heads": shared,
            "recurrent_key_dim": keys // shared,
            "recurrent_value_dim": wide // heads,
            "convolution_width": one.kernel.shape[1],
        }
        yield _Reading(fields, maps, parameters, vectors, rates)


def read_recurrences(
    found: FoundFields,
    operations: Sequence[Operation],
    values: Arrays,
    named: Mapping[str, Recurrence],
    kinds: Sequence[type[Sublayer]],
) -> None:
    """Add the fields and parameters of the recurrences. `kinds` has each layer's kind, a recurrence or an attention."""
    rates: list[tuple[np.ndarray, np.ndarray]] = []
    for name, each in named.items():
        reading = _read(found, each, operations, values)
        reading.written(found, name.replace("self_attention", "recurrence"))
        found.used |= each.used
        found.fields = {**reading.fields, **found.fields}
        rates.append((reading.rates.step, reading.rates.bounded))
    _read_bounds(found, *(np.concatenate([x.ravel() for x in each]) for each in zip(*rates, strict=True)))
    types = [LINEAR if kind is Recurrence else FULL for kind in kinds]
    if FULL in types:
        overrides = {LINEAR: {"mixer": found.fields["mixer"]}}
        found.fields |= {"mixer": "attention", "layer_types": repeating(types), "layer_overrides": overrides}


def _read_bounds(found: FoundFields, step: np.ndarray, bounded: np.ndarray) -> None:
    """Add the bounds of the time step; a bound is known only if a time step is clipped."""
    found.fields |= {"time_step_min": 0.0, "time_step_max": None}
    for name, bound, is_beyond, side in (
        ("time_step_min", float(bounded.min()), step < bounded.min() * (1 - SAME), "short"),
        ("time_step_max", float(bounded.max()), step > bounded.max() * (1 + SAME), "long"),
    ):
        if is_beyond.any():
            found.fields[name] = settled(bound)
        else:
            found.untold[name] = f"no time step is {side} enough to reach a bound"
