"""Find the sublayers of a module from its linear maps and attention weights."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.mixers import Recurrence
from transparity_conformance.identify.fitting.subject import FitError, RecordedCall
from transparity_conformance.identify.fitting.values.convolutions import Convolution
from transparity_conformance.identify.fitting.values.experts import Experts
from transparity_conformance.identify.fitting.values.linears import Columns, Linear, Sublayer
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.identify.fitting.values.scores import Softmax
from transparity_numpy.arithmetic.functional import sigmoid


@dataclass(frozen=True, eq=False)
class Attention(Sublayer):
    softmax: Softmax
    packed: tuple[str, ...]
    """The names of the parameters from which query, key, value and gate were read; some may be fused."""

    @property
    def heads(self) -> int:
        return self.softmax.weights.shape[1]

    @property
    def head_dim(self) -> int:
        return self.maps["output"].weight.shape[1] // self.heads

    def by_head(self, role: str) -> np.ndarray:
        batch, _, queries, keys = self.softmax.weights.shape
        length = queries if role == "query" else keys
        return self.maps[role].made.reshape(batch, length, -1, self.head_dim).swapaxes(1, 2)


@dataclass(frozen=True, eq=False)
class FeedForward(Sublayer):
    """The maps `up` and `down`, and possibly `gate`. The order of `gate` and `up` is known only after the
    activation."""


Anchor = Softmax | tuple[list[Convolution], list[Linear]]
"""The softmax of an attention, or the convolutions and linear maps of a recurrence."""


def softmaxes(heard: RecordedCall) -> list[Softmax]:
    """Return attention weights: nonnegative values whose rows sum to 1, without copies and means over heads."""
    found: list[Softmax] = []
    seen: set[int] = set()
    batch, lengths = heard.batch, heard.lengths.values()
    for index, operation in enumerate(heard.operations):
        value = operation.value
        is_copy = not seen.isdisjoint(operation.inputs)
        if is_copy and is_same(np.sort(value, axis=None), np.sort(found[-1].weights, axis=None)):
            seen.add(index)  # in another shape
        if value.ndim < 3 or value.shape[-1] not in lengths or value.shape[-2] not in lengths:
            continue
        if value.size % (batch * value.shape[-1] * value.shape[-2]) or value.min() < 0:
            continue
        if np.abs(value.sum(-1) - 1).max() > SAME:
            continue
        if not is_copy:
            begins = found[-1].at + 1 if found else 0
            found.append(Softmax(begins, index, value.reshape(batch, -1, *value.shape[-2:])))
        seen.add(index)
    return found


def sublayers(
    maps: Sequence[Linear],
    unsorted: Sequence[Anchor],
    width: int,
    experts: Sequence[Experts],
    *,
    keys_first: bool,
) -> tuple[list[Sublayer], list[Linear]]:
    """Return the sublayers in execution order, and the linear maps after the last sublayer. `keys_first` matters if
    keys and queries have the same shape."""
    found: list[Sublayer] = []
    routed = {each.maps["router"]: each for each in experts}
    anchors = sorted(unsorted, key=_end_of)
    cuts = [-1, *map(_end_of, anchors), float("inf")]
    projections, *between = [[one for one in maps if low < one.at <= high] for low, high in itertools.pairwise(cuts)]
    for anchor, rest in zip(anchors, between, strict=True):
        if not rest or not projections:
            place = "before" if rest else "after"
            raise FitError(f"No linear map was found {place} the softmax of sublayer {len(found)}; {_FORMS}")
        gates = [one for one in rest[:-1][:1] if is_same(one.given, projections[0].given)]
        output, *behind = rest[len(gates) :]
        if isinstance(anchor, Softmax):
            attention, unread = _attention(anchor, [*projections, *gates], output, keys_first=keys_first)
            found.append(attention)
            behind = [*unread, *behind]
        else:
            found.append(Recurrence({"": anchor[1][0], "output": output}, *anchor))
        feed, projections = _feed_forward(behind, width, routed, is_last=anchor is anchors[-1])
        found += feed
    return found, projections


def _end_of(anchor: Anchor) -> int:
    return anchor.at if isinstance(anchor, Softmax) else max(each.at for part in anchor for each in part)


_FORMS = "expected a linear map for each of query, key and value, or one for all three in this order."


def _feed_forward(
    rest: Sequence[Linear], width: int, routed: Mapping[Linear, Experts], *, is_last: bool
) -> tuple[list[Sublayer], list[Linear]]:
    if rest and rest[0] in routed:
        return [routed[rest[0]]], list(rest[1:])
    groups: list[list[Linear]] = []  # maps with the same input
    for one in rest:
        if groups and is_same(groups[-1][0].given, one.given):
            groups[-1].append(one)
        else:
            groups.append([one])
    is_feed = len(groups) > (1 if is_last else 2) and len(groups[0]) <= 2 and len(groups[1]) == 1
    if not is_feed or groups[1][0].weight.shape[0] != width:
        return [], list(rest)
    ups, (down,) = groups[0], groups[1]
    inner = down.weight.shape[1]
    if len(ups) == 1 and ups[0].weight.shape[0] == 2 * inner:
        ups = [ups[0].rows(slice(0, inner)), ups[0].rows(slice(inner, 2 * inner))]
    named = dict(zip(("gate", "up")[-len(ups) :], ups, strict=True))
    return [FeedForward({**named, "down": down})], list(itertools.chain(*groups[2:]))


def _attention(
    softmax: Softmax, projections: Sequence[Linear], output: Linear, *, keys_first: bool
) -> tuple[Attention, list[Linear]]:
    """Return the attention, and the features of fused maps that the attention does not read. Without the value's
    features, the first features are query and key. If the value's features are not contiguous, query, key and value
    alternate by groups of heads."""
    (batch, heads, queries, keys), width = softmax.weights.shape, output.weight.shape[1]
    if width % heads:
        raise FitError(f"An attention has {heads} heads, but its output map reads {width} features; {_FORMS}")
    shared = (heads * batch * queries, heads * batch * keys)  # the rows of a map that is applied to every head
    every: list[Linear] = []
    for one in projections:
        every += one.over_heads(heads, width // heads) if len(one.made) in shared else [one]
    columns = Columns([one for one in every if len(one.made) == batch * keys])
    rest = [one for one in every if one not in columns.maps]  # in cross-attention: the maps of the query
    own = Columns(rest) if rest else columns
    names = tuple(each for one in every for each in (one.name, one.bias_name) if each is not None)
    for value, gate in _values(softmax, columns, own, output):
        left = columns.without(value, () if rest else gate)
        groups = 1 if max(value) - min(value) < len(value) else len(value) * heads // width
        of_query, of_key = 0 if rest else width // groups, len(value) // groups
        if len(left) % groups or len(left) < groups * (of_query + of_key):
            continue
        ends = of_key if keys_first else of_query, of_query + of_key
        rows = np.split(np.reshape(left, (groups, -1)), ends, axis=1)
        query, key, unread = (part.ravel().tolist() for part in rows)
        query, key = (key, query) if keys_first else (query, key)
        maps = {
            "query": own.linear(own.without(gate) if rest else query),
            "key": columns.linear(key),
            "value": columns.linear(value),
            **({"gate": own.linear(gate)} if gate else {}),
            "output": output,
        }
        if gate or is_same(_context(softmax, maps["value"].made, width // heads), output.given):
            return Attention(maps, softmax, names), [columns.linear(unread)] if unread else []
    raise FitError(
        f"The context of an attention with {heads} heads is not a weighted sum of the results of the "
        f"preceding linear maps; {_FORMS}"
    )


def _values(softmax: Softmax, columns: Columns, own: Columns, output: Linear) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the features of the value, and of the gate. Without a gate, weights · value is the output map's input."""
    batch, heads, queries, keys = softmax.weights.shape
    context = output.given.reshape(len(output.given), heads, -1)

    def weighted(head: int, made: np.ndarray) -> np.ndarray:
        sums = softmax.weights[:, head] @ made.reshape(batch, keys, -1)
        return sums.reshape(batch * queries, -1)

    if not columns.maps or len(context) != batch * queries:
        return
    found = [columns.matching(context[:, head], functools.partial(weighted, head)) for head in range(heads)]
    if None not in found:
        yield list(dict.fromkeys(each for one in found for each in one or ())), []
    end = columns.made.shape[1]
    for value in reversed(columns.maps):
        begin = end - value.made.shape[1]
        sums = _context(softmax, value.made, context.shape[2])
        if sums.size == output.given.size:
            gate = own.matching(output.given, sigmoid, sums.reshape(output.given.shape))
            if gate is not None:
                yield list(range(begin, end)), gate
        end = begin


def _context(softmax: Softmax, value: np.ndarray, head_dim: int) -> np.ndarray:
    """Return the weighted sum of the values; empty if the shapes do not fit."""
    batch, heads, _, keys = softmax.weights.shape
    rows, features = value.shape
    shared = rows * features // (batch * keys * head_dim)
    if rows % (batch * keys) or features % head_dim or not shared or heads % shared:
        return np.empty(0)
    own = value.reshape(batch, keys, -1, head_dim).swapaxes(1, 2).repeat(heads // shared, axis=1)
    return (softmax.weights @ own).swapaxes(1, 2)
