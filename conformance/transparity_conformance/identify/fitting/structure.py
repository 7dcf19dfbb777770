"""Find the sublayers of a module from its linear maps and attention weights.

Attention consists of linear maps before a softmax, and a linear map after the softmax. A feed-forward follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.mixers import Recurrence
from transparity_conformance.identify.fitting.subject import FitError, RecordedCall
from transparity_conformance.identify.fitting.values.convolutions import Convolution
from transparity_conformance.identify.fitting.values.experts import Experts
from transparity_conformance.identify.fitting.values.linears import Columns, Linear
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.identify.fitting.values.scores import Softmax
from transparity_numpy.arithmetic.functional import sigmoid


@dataclass(frozen=True, eq=False)
class Attention:
    softmax: Softmax
    query: Linear
    key: Linear
    value: Linear
    output: Linear
    begins: int
    """The index of the first operation that may belong to the attention."""
    gate: Linear | None = None
    """The linear map whose sigmoid multiplies the context."""
    packed: tuple[str, ...] = ()
    """The names of fused parameters, which contain several of query, key, value and gate."""

    @property
    def given(self) -> np.ndarray:
        return self.query.given

    @property
    def result(self) -> tuple[int, np.ndarray]:
        return self.output.at, self.output.made

    @property
    def heads(self) -> int:
        return self.softmax.weights.shape[1]

    @property
    def head_dim(self) -> int:
        return self.output.weight.shape[1] // self.heads

    def split(self, linear: Linear) -> np.ndarray:
        batch, _, queries, keys = self.softmax.weights.shape
        length = queries if linear is self.query else keys
        return linear.made.reshape(batch, length, -1, self.head_dim).swapaxes(1, 2)


@dataclass(frozen=True, eq=False)
class FeedForward:
    ups: tuple[Linear, ...]
    down: Linear

    @property
    def given(self) -> np.ndarray:
        return self.ups[0].given

    @property
    def result(self) -> tuple[int, np.ndarray]:
        return self.down.at, self.down.made


Mixer = Attention | Recurrence

Sublayer = Mixer | FeedForward | Experts

Anchor = Softmax | tuple[list[Convolution], list[Linear]]
"""The operations that reveal a mixer: attention weights, or a recurrence's convolutions and their linear maps."""


def softmaxes(heard: RecordedCall) -> list[Softmax]:
    """Return the weights of all attentions: nonnegative values whose rows have one number per key and sum to 1."""
    found: list[Softmax] = []
    copies: set[int] = set()
    batch, lengths = heard.batch, heard.lengths.values()
    for index, operation in enumerate(heard.operations):
        value = operation.value
        if copies & set(operation.inputs) and is_same(found[-1].weights, value):
            copies.add(index)
            continue
        if value.ndim < 3 or value.shape[-1] not in lengths or value.shape[-2] not in lengths:
            continue
        if value.size % (batch * value.shape[-1] * value.shape[-2]) or value.min() < 0:
            continue
        if np.abs(value.sum(-1) - 1).max() > SAME:
            continue
        copies = {index}
        found.append(Softmax(index, value.reshape(batch, -1, *value.shape[-2:])))
    return found


def before(found: Sequence[Softmax], one: Softmax) -> int:
    place = found.index(one)
    return found[place - 1].at + 1 if place else 0


def sublayers(
    maps: Sequence[Linear],
    weights: Sequence[Softmax],
    width: int,
    *,
    keys_first: bool,
    recurrences: Sequence[tuple[list[Convolution], list[Linear]]] = (),
    experts: Sequence[Experts] = (),
) -> tuple[list[Sublayer], list[Linear]]:
    """Return the sublayers in execution order, and the linear maps after the last sublayer.

    Args:
        keys_first: whether the module computes keys before queries; used if both have the same shape.
        recurrences: for each recurrence, the convolutions and the linear maps of their input.
    """
    found: list[Sublayer] = []
    routed = {each.router: each for each in experts}
    unsorted: list[Anchor] = [*weights, *recurrences]
    anchors = sorted(unsorted, key=_end_of)
    ends = [_end_of(each) for each in anchors]
    cuts = [-1, *ends, float("inf")]
    between = [[one for one in maps if low < one.at <= high] for low, high in itertools.pairwise(cuts)]
    projections: list[Linear] = between[0]
    for anchor, rest in zip(anchors, between[1:], strict=True):
        if not rest or not projections:
            raise FitError(f"No linear map was found around the softmax of attention {len(found)}; {_FORMS}")
        begins = min(one.at for one in projections)
        gates = [one for one in rest[:-1][:1] if is_same(one.given, projections[0].given)]
        output, *behind = rest[len(gates) :]
        if isinstance(anchor, Softmax):
            found.append(_attention(anchor, [*projections, *gates], output, begins, keys_first=keys_first))
        else:
            found.append(Recurrence(*anchor, output, begins))
        feed, projections = _feed_forward(behind, width, routed, is_last=anchor is anchors[-1])
        found += feed
    return found, projections


def _end_of(anchor: Anchor) -> int:
    """Return the index of a mixer's last known operation; the output map of the mixer comes later."""
    if isinstance(anchor, Softmax):
        return anchor.at
    convolutions, maps = anchor
    return max(*(each.at for each in convolutions), *(each.at for each in maps))


_FORMS = "expected a linear map for each of query, key and value, or one for all three in this order."


def _feed_forward(
    rest: Sequence[Linear], width: int, routed: Mapping[Linear, Experts], *, is_last: bool
) -> tuple[list[Sublayer], list[Linear]]:
    """Return the feed-forward or the experts after a mixer, as a list that may be empty, and the remaining maps."""
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
        ups = [ups[0].part(0, inner), ups[0].part(inner, 2 * inner)]
    return [FeedForward(tuple(ups), down)], list(itertools.chain(*groups[2:]))


def _attention(
    softmax: Softmax, projections: Sequence[Linear], output: Linear, begins: int, *, keys_first: bool
) -> Attention:
    """Return the attention with the weights `softmax`; its query, key and value are among `projections`.

    The value is recognized because weights · value is the input of the output map.
    """
    heads, width = softmax.weights.shape[1], output.weight.shape[1]
    if width % heads:
        raise FitError(f"An attention has {heads} heads, but its output map reads {width} features; {_FORMS}")
    for ways in (_plain_attentions, _gated_attentions):
        for made in ways(softmax, projections, output, begins, keys_first):
            return made
    if len(projections) > 3:
        raise FitError(f"{len(projections)} linear maps were found before a softmax; {_FORMS}")
    raise FitError(f"The context of an attention with {heads} heads is no weighted sum of a projection; {_FORMS}")


def _plain_attentions(
    softmax: Softmax, projections: Sequence[Linear], output: Linear, begins: int, keys_first: bool
) -> Iterator[Attention]:
    heads, width = softmax.weights.shape[1], output.weight.shape[1]
    packed = list(_by_head(projections[0], heads, width // heads)) if len(projections) == 1 else []
    for separate in (_separate(list(projections), width), *packed):
        for value in reversed(separate):
            query, key = (one for one in separate if one is not value)
            if len(key.weight) > len(query.weight) or (keys_first and len(key.weight) == len(query.weight)):
                query, key = key, query
            names = (query.name, query.bias_name) if separate in packed else ()
            made = Attention(softmax, query, key, value, output, begins, None, tuple(filter(None, names)))
            if is_same(_context(made), output.given):
                yield made


def _gated_attentions(
    softmax: Softmax, projections: Sequence[Linear], output: Linear, begins: int, keys_first: bool
) -> Iterator[Attention]:
    for value in reversed(projections if len(projections) > 1 else ()):
        rest = [one for one in projections if one is not value]
        own = [one for one in rest if len(one.made) == len(output.given)]
        of_memory = [one for one in rest if one not in own]
        made = Attention(softmax, rest[0], value, value, output, begins)
        context = _context(made)
        if context.size != output.given.size or len(of_memory) > 1 or not own:
            continue
        columns = Columns(own)
        chosen = columns.matching(output.given, sigmoid, context.reshape(output.given.shape))
        if chosen is None:
            continue
        gate, left = columns.linear(chosen), columns.without(chosen)
        wide = output.weight.shape[1]
        keys = len(left) - wide
        ends = (
            (slice(keys, None), slice(0, keys)) if keys_first and not of_memory else (slice(0, wide), slice(wide, None))
        )
        query, key = (columns.linear(left[at]) if left[at] else of_memory[0] for at in ends)
        names = tuple(each for one in rest for each in (one.name, one.bias_name) if each is not None)
        yield Attention(softmax, query, key, value, output, begins, gate, names)


def _by_head(packed: Linear, heads: int, head_dim: int) -> Iterator[list[Linear]]:
    """Split a fused map into groups of query heads, a key head and a value head; try all group sizes."""
    for groups in range(1, heads + 1):
        size = heads // groups + 2
        if heads % groups or len(packed.weight) != groups * size * head_dim:
            continue
        rows = np.arange(len(packed.weight)).reshape(groups, size, head_dim)
        yield [packed.rows(each.ravel()) for each in (rows[:, :-2], rows[:, -2], rows[:, -1])]


def _separate(maps: list[Linear], width: int) -> list[Linear]:
    """Return the maps of query, key and value, after splitting fused maps; [] if there are more than three maps."""
    if len(maps) == 1:
        rest = (maps[0].weight.shape[0] - width) // 2
        ends = (0, width, width + rest, width + 2 * rest)
        return [maps[0].part(begin, end) for begin, end in itertools.pairwise(ends)]
    if len(maps) == 2:
        half = maps[1].weight.shape[0] // 2
        return [maps[0], maps[1].part(0, half), maps[1].part(half, 2 * half)]
    return maps if len(maps) == 3 else []


def _context(attention: Attention) -> np.ndarray:
    """Return the weighted sum of the values; empty if the length or the number of heads does not fit."""
    batch, heads, _, keys = attention.softmax.weights.shape
    rows, features = attention.value.made.shape
    shared = rows * features // (batch * keys * attention.head_dim)
    if rows % (batch * keys) or features % attention.head_dim or not shared or heads % shared:
        return np.empty(0)
    value = attention.split(attention.value).repeat(heads // shared, axis=1)
    return (attention.softmax.weights @ value).swapaxes(1, 2)
