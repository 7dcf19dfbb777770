"""Find the port's tensor for each tensor of the reference: load weights into the port, and compare the values that the
port computes. A choice is one tensor of the port, a part of a fused tensor, or several tensors that the reference
fuses."""

from __future__ import annotations

import difflib
import functools
import itertools
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transparity_conformance.against.edits.edit import VIEWS, behind_views, given_of, references, short
from transparity_conformance.against.reference import shares
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.program import Program, Step
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.values import Known, fingerprint
from transparity_conformance.report.formatting import some
from transparity_conformance.running.process.running import ask

NUMBER = re.compile(r"\d+")

PARTS = {"split", "split_with_sizes", "unsafe_split", "slice", "select", "chunk", "unbind"}

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "einsum", "tensordot", "dot_general"}
"""Operations whose matrices may be transposed in the port. Tables of embeddings are not transposed."""

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Place:
    """A tensor of the port, or a part of a tensor, that receives numbers of the reference."""

    name: str
    axes: tuple[int, ...] = ()
    """The axes of the reference's tensor in the port's order; empty for the same order."""
    shape: tuple[int, ...] = ()
    """The shape of the reference's tensor in the port's order of axes, if the port reshapes this tensor."""
    axis: int = 0
    part: tuple[int, int] | None = None
    """The part's rows or columns, as (start, end); None for the whole tensor."""

    def of(self, values: Tensors) -> np.ndarray:
        """Return a view of this part in the reference's order of axes. The values must be contiguous."""
        found = values[self.name]
        found = found if self.part is None else found[(slice(None),) * self.axis + (slice(*self.part),)]
        found = found.reshape(self.shape) if self.shape else found
        return found.transpose(np.argsort(self.axes)) if self.axes else found

    def overlaps(self, other: Place) -> bool:
        if self.part is None or other.part is None or self.axis != other.axis:
            return self.name == other.name
        return self.name == other.name and self.part[0] < other.part[1] and other.part[0] < self.part[1]


@dataclass(frozen=True)
class Choice:
    """Places in the port that, joined along an axis, form a tensor of the reference."""

    places: tuple[Place, ...]
    axis: int = 0

    @functools.cached_property
    def modules(self) -> set[str]:
        return {each.name.rpartition(".")[0] for each in self.places}

    @functools.cached_property
    def owners(self) -> tuple[Any, ...]:
        """Return (module, number of the part) for each place, such as ("attention", 2) for the third part of a fused
        tensor."""
        parts = ((each.name, each.part or (0, 1)) for each in self.places)
        return tuple((name.rpartition(".")[0], start // (end - start)) for name, (start, end) in parts)

    def overlaps(self, others: Iterable[Choice]) -> bool:
        return any(one.overlaps(other) for each in others for other in each.places for one in self.places)

    def fill(self, made: Tensors, value: np.ndarray) -> None:
        parts = [each.of(made) for each in self.places]
        ends = list(itertools.accumulate(each.shape[self.axis] for each in parts[:-1]))
        for part, each in zip(parts, np.split(value, ends, self.axis) if ends else [value], strict=True):
            part[...] = each


Choices = dict[str, Choice]


@dataclass(frozen=True)
class Paired:
    choices: Choices
    confirmed: frozenset[str] = frozenset()
    """The tensors of the reference with a confirmed choice: the port computes the same values with this choice, or no
    other choice exists."""
    stacks: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """The tensors of the reference, and of the port, whose rows are chosen separately."""

    def values(self, theirs: Tensors, port: Tensors) -> dict[str, np.ndarray]:
        made = {name: np.array(value, order="C") for name, value in port.items()}
        given, filled = (_by_rows(of, names) for of, names in zip((theirs, made), self.stacks, strict=True))
        for name, choice in self.choices.items():
            choice.fill(filled, given[name])
        return made

    def fill(self, theirs: Tensors, forward: Any) -> None:
        ask(forward, "assign", self.values(theirs, ask(forward, "tensors")))

    @property
    def notes(self) -> list[str]:
        says = "matched only by names and order; no activation confirms the match"
        owned = [(name, each.places) for name, each in self.choices.items() if name not in self.confirmed]
        guessed = [
            f"{name}{f'[{number}]' if len(places) > 1 else ''} → {place.name}"
            for name, places in owned
            for number, place in enumerate(places)
        ]
        return [f"{says}: {some(guessed, 3)}"] if guessed else []


def paired(
    program: Program, dtype: str, theirs: Tensors, forward: Any, listen: Callable[[], Sequence[Operation]]
) -> Paired:
    """Find the port's tensor for each tensor of the reference (`theirs`). `listen` returns the port's operations in the
    recorded call. Raise `PortError` if a tensor has no counterpart, or if the order of fused parts stays unknown."""
    port = ask(forward, "tensors")
    if not port:
        raise PortError("The port has no tensors to fill; expected a module, or a loader of a folder (--checkpoint).")

    stacks = _stacks(theirs, port), _stacks(port, theirs)

    def known(choices: Choices) -> Known:
        ask(forward, "assign", Paired(choices, stacks=stacks).values(theirs, port))
        return Known({index: fingerprint(each.value) for index, each in enumerate(listen())})

    rows = _by_rows(port, stacks[1])
    search = _Search(program, shares(program, dtype), _by_rows(theirs, stacks[0]), rows, known, stacks)
    found = replace(search.run(), stacks=stacks)
    fused = _of_unequal_parts(found.choices, rows)
    if fused and found.confirmed.isdisjoint(fused):
        names = ", ".join(sorted({_pattern(name) for name in fused.values()}))
        raise PortError(
            "The port's activations do not determine the order of the parts in the fused tensors "
            f"{names}; pass both implementations as loaders, with --checkpoint FOLDER."
        )
    return found


def _of_unequal_parts(choices: Choices, port: Tensors) -> dict[str, str]:
    """Map tensors to their fused tensors, if the parts of a fused tensor differ in size. The order of the parts then
    changes each part's range."""
    owned = [(name, each, place) for name, each in choices.items() for place in each.places]
    parts = [(name, name if len(each.places) > 1 else place.name, place.of(port).size) for name, each, place in owned]
    sizes = Counter(fused for _, fused in {(size, fused) for _, fused, size in parts})
    return {name: fused for name, fused, _ in parts if sizes[fused] > 1}


def _series(names: Iterable[str]) -> dict[tuple[str, str], list[str]]:
    """Group names that differ in one number, such as the names of a layer's experts. The key is the text before and
    after this number; the numbers are 0, 1, 2, ..."""
    found = defaultdict[tuple[str, str], dict[int, str]](dict)
    for name in names:
        for number in NUMBER.finditer(name):
            found[name[: number.start()], name[number.end() :]][int(number[0])] = name
    return {key: [each[n] for n in sorted(each)] for key, each in found.items() if sorted(each) == [*range(len(each))]}


def _stacks(tensors: Tensors, others: Tensors) -> frozenset[str]:
    """Return the tensors whose rows may be separate tensors in the other implementation, such as the experts of a
    layer."""
    sizes = [Counter(map(_sizes, of.values())) for of in (tensors, others)]
    lacking, spare = (
        {name: each for name, each in of.items() if _sizes(each) in surplus}
        for of, surplus in ((tensors, sizes[0] - sizes[1]), (others, sizes[1] - sizes[0]))
    )
    whole = {each.size for each in spare.values()}

    def fitting(rows: Tensors) -> set[str]:
        sizes = {(len(names), rows[names[0]].size) for names in _series(rows).values() if len(names) > 1}
        return {
            name
            for name, value in lacking.items()
            if value.ndim > 1 and value.size not in whole
            if any((len(value), value[0].size / parts) in sizes for parts in (1, 2, 3))
        }

    found = fitting(spare)
    beside = {(name.rpartition(".")[0], len(tensors[name])) for name in found}
    return frozenset(
        found | {name for name in fitting(others) if (name.rpartition(".")[0], len(tensors[name])) in beside}
    )


def _sizes(value: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted(value.shape))


def _by_rows(tensors: Tensors, stacks: Collection[str]) -> Tensors:
    """Replace each tensor of `stacks` by its rows."""
    rows = {name: [*enumerate(value)] for name, value in tensors.items() if name in stacks}
    return {
        (name if number is None else f"{name}.{number}"): each
        for name, value in tensors.items()
        for number, each in rows.get(name, [(None, value)])
    }


def _numbers(tensors: Tensors, stacks: Collection[str]) -> dict[str, set[tuple[int, int]]]:
    """Map tensors to (length, number) of each series that contains the tensor. A row of a stack has only one series."""
    found = {name: set[tuple[int, int]]() for name in tensors}
    for (start, end), names in _series(tensors).items():
        for number, name in enumerate(names):
            if (stem := name.rpartition(".")[0]) not in stacks or (start, end) == (f"{stem}.", ""):
                found[name].add((len(names), number))
    return found


def _pattern(name: str) -> str:
    return NUMBER.sub("#", name)


@functools.lru_cache(None)
def _similarity(one: str, other: str) -> float:
    words = re.compile(r"[._]").split
    return difflib.SequenceMatcher(None, words(one), words(other), autojunk=False).ratio()


PARAMETERS = {"kernel": "weight", "scale": "weight", "embedding": "weight", "gamma": "weight", "beta": "bias"}
"""Names of parameters in Flax and Keras, with the names in PyTorch."""


def _plain(name: str) -> str:
    module, dot, parameter = name.rpartition(".")
    return f"{module}{dot}{PARAMETERS.get(parameter, parameter)}"


def _statistic(name: str) -> str:
    word = re.split(r"[._]", name)[-1]
    return {"mean": "mean", "var": "var", "variance": "var"}.get(word, "")


def _same_names(theirs: Iterable[str], port: Collection[str]) -> dict[str, str]:
    """Map tensors of the reference to tensors of the port, if most names are equal. A common prefix and the frameworks'
    names of parameters may differ."""
    found = defaultdict[tuple[str, str], dict[str, str]](dict)
    for name, other in itertools.product(theirs, port):
        mine, yours = _plain(name), _plain(other)
        end = min(mine, yours, key=len)
        starts = mine.removesuffix(end), yours.removesuffix(end)
        if (mine.endswith(end) and yours.endswith(end)) and all(not each or each.endswith(".") for each in starts):
            found[starts][name] = other
    most = max(found.values(), key=len, default={})
    return most if 2 * len(most) > len({*theirs}) else {}


def _shapes_of(tensors: Tensors) -> dict[str, Counter[tuple[int, ...]]]:
    """Return the shapes of the tensors of each module, each with its sizes in order."""
    found = defaultdict[str, Counter[tuple[int, ...]]](Counter)
    for name, value in tensors.items():
        found[name.rpartition(".")[0]][tuple(sorted(value.shape))] += 1
    return found


def _module(name: str) -> str:
    return ".".join(name.split(".")[:-2])


def _axis_of(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Return the axis along which one tensor may be a part of the other."""
    differ = [axis for axis, sizes in enumerate(zip(part, whole, strict=False)) if sizes[0] != sizes[1]]
    return differ[0] if len(part) == len(whole) and len(differ) == 1 and part[differ[0]] < whole[differ[0]] else None


def _turned(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in axes) or shape


def _regroups(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return whether one shape joins neighboring axes of the other shape."""
    fine, coarse = sorted((one, other), key=len, reverse=True)
    ends = [{*itertools.accumulate(shape, operator.mul)} for shape in (fine, coarse)]
    return len(fine) > len(coarse) > 0 and ends[0] >= ends[1] and max(ends[0]) == max(ends[1])


def _as_parts(
    name: str, own: tuple[int, ...], whole: tuple[int, ...], axes: tuple[int, ...]
) -> Iterator[tuple[int, int, Place]]:
    """Yield (axis, size on this axis, place) for each axis along which a tensor of the port may be a part of the tensor
    `whole`."""
    if len(own) == len(whole) and (axis := _axis_of(part := _turned(own, axes), whole)) is not None:
        yield axis, part[axis], Place(name, axes)
    for axis, count in itertools.product(range(len(whole)), range(2, 10)):
        part = (*whole[:axis], whole[axis] // count, *whole[axis + 1 :])
        if whole[axis] % count == 0 and _regroups(turned := _turned(part, axes), own):
            yield axis, part[axis], Place(name, axes, turned)


MANY = 120
"""The checker tries all orders of the parts of a fused tensor if there are at most this many orders."""


def _windows(parts: Sequence[tuple[int, Place]], size: int) -> Iterator[tuple[Place, ...]]:
    """Yield neighboring parts whose equal sizes have the sum `size`. The first part is a neighbor of the last part."""
    places, sizes = [*{place.name: place for _, place in parts}.values()], {own for own, _ in parts}
    count = size // min(sizes)
    if len(sizes) == 1 and count * min(sizes) == size and count <= len(places):
        yield from (tuple((places * 2)[start : start + count]) for start in range(len(places)))


def _runs(parts: Collection[tuple[int, Place]], size: int, most: int = 4) -> Iterator[tuple[Place, ...]]:
    """Yield the sequences of parts of different tensors, at most `most`, whose sizes have the sum `size`."""
    if size == 0:
        yield ()
    for own, place in parts if most else ():
        others = [each for each in parts if each[0] <= size - own and each[1].name != place.name]
        if own <= size:
            yield from ((place, *rest) for rest in _runs(others, size - own, most - 1))


class _Search:
    """A search for the choices with which the port computes the reference's values, within the tolerances `within`."""

    def __init__(
        self,
        program: Program,
        within: Mapping[int, float],
        theirs: Tensors,
        port: Tensors,
        known: Callable[[Choices], Known],
        stacks: tuple[frozenset[str], frozenset[str]],
    ) -> None:
        self.program, self.within, self.theirs, self.port, self.known = program, within, theirs, port, known
        ours, needed = (Counter(map(_sizes, of.values())) for of in (port, theirs))
        spare, lacking = ours - needed, needed - ours
        self.spare = {name: each.shape for name, each in port.items() if _sizes(each) in spare}
        self.lacking = {name: each.shape for name, each in theirs.items() if _sizes(each) in lacking}
        self.beside: dict[str, list[str]] = {}
        for name in self.lacking:
            self.beside.setdefault(_module(name), []).append(name)
        self.stems = {name: name.rpartition(".")[0] for name in theirs if name.rpartition(".")[0] in stacks[0]}
        self.used = dict(self._used())
        maps = {each.shape for each in theirs.values() if each.ndim == 2 and each.shape[0] != each.shape[1]}
        self.is_turned = self._is_turned(maps)
        self.same, self.groups = _same_names(theirs, port), (_shapes_of(theirs), _shapes_of(port))
        self.stored = defaultdict[str, set[bool]](set)
        """For each last part of the port's names, such as `kernel`: whether matrices are stored as in the reference."""
        for each, own in self.same.items():
            if theirs[each].shape in maps:
                self.stored[own.rpartition(".")[2]].add(theirs[each].shape == port[own].shape)
        self.depths = {*Counter(self.stems.values()).values()}
        self.numbers = [_numbers(of, names) for of, names in zip((theirs, port), stacks, strict=True)]
        self.rows = {*self.stems, *(name for name in port if name.rpartition(".")[0] in stacks[1])}
        self.statistics = [Counter(map(_statistic, of)) for of in (theirs, port)]
        self.choices = {name: self._choices(name) for name in theirs}
        modules = defaultdict[str, list[str]](list)
        for name in theirs:
            modules[name.rpartition(".")[0]].append(name)
        self.modules = {name: modules[name.rpartition(".")[0]] for name in theirs}
        self.tried = set[frozenset[tuple[str, Choice]]]()
        self.heard: dict[frozenset[tuple[str, Choice]], Known] = {}

    def _used(self) -> Iterator[tuple[int, list[str]]]:
        for step in self.program.steps:
            given = {given_of(self.program, item) for _, item in references(step)} & self.program.parameters
            names = {self.program.names[index] for index in given}
            found = [each for each in self.theirs if self.stems.get(each, each) in names]
            if found and short(step) not in VIEWS:
                yield step.number, found

    def _is_turned(self, maps: Collection[tuple[int, ...]]) -> bool:
        """Return whether the port calls its matrices kernels, as Flax and Keras do, or transposes most matrices of
        products. Square matrices then count as transposed."""
        products = {number for number in self.used if short(self.program.steps[number]) in PRODUCTS}
        multiplied = {name for number in products for name in self.used[number]}
        told = {self.theirs[name].shape for name in multiplied or self.theirs} & {*maps}
        shapes = {each.shape for each in self.port.values()}
        are_kernels = any(name.endswith("kernel") for name in self.port)
        return are_kernels or len({shape for shape in told if shape[::-1] in shapes}) > len(told & shapes)

    def _choices(self, name: str) -> list[Choice]:
        orders = [*itertools.permutations(range(self.theirs[name].ndim))]
        orders = orders[::-1] if self.is_turned and len(orders) == 2 else orders
        found = [each for axes in orders for whole in self.port for each in self._places(name, axes, whole)]
        ends = [axes for axes in orders if axes in (orders[0], orders[-1])]  # a fused matrix may be transposed
        found += [each for axes in ends for each in self._joined(name, axes)]
        found = [each for each in found if self._is_same_row(name, each) and self._is_same_statistic(name, each)]
        stored, count = self.stored[self.same.get(name, "").rpartition(".")[2]], self.theirs[name].ndim
        alike = [tuple(range(count))] if stored == {True} else [(1, 0)] if stored == {False} and count == 2 else orders
        named = {(Place(self.same.get(name, ""), axes),) for axes in alike}
        if own := [each for each in found if each.places in named]:
            return own  # any other choice would hide that the port reads a wrong tensor
        others = [each for each in found if not any(place.name in self.same.values() for place in each.places)]
        found = others or found
        return sorted(found, key=lambda choice: self._unlikeness(name, choice))

    def _is_same_row(self, name: str, choice: Choice) -> bool:
        """Return whether a row of a stack and its choice have the same number, unless no tensor is a row."""
        owners = [place.name for place in choice.places]
        own, others = self.numbers
        return self.rows.isdisjoint({name, *owners}) or all(own[name] & others[each] for each in owners)

    def _is_same_statistic(self, name: str, choice: Choice) -> bool:
        """Return whether both tensors are the same statistic of a batch norm, or neither is a statistic."""
        kinds = {_statistic(each) for each in (name, *(place.name for place in choice.places))}
        return len(kinds) == 1 or any(self.statistics[0][each] != self.statistics[1][each] for each in kinds - {""})

    def _unlikeness(self, name: str, choice: Choice) -> tuple[bool, bool, bool, float]:
        """Return a sort key that prefers modules with tensors of the same shapes, equal parts, the same kind of
        parameter, and similar names."""
        own, words = self.groups[0][name.rpartition(".")[0]], re.compile(r"[._]").split
        is_other = any(self.groups[1][module] != own for module in choice.modules)
        names, kind = [_plain(place.name) for place in choice.places], words(_plain(name))[-1]
        sizes = {self.port[place.name].size for place in choice.places}
        return (
            is_other,
            len(sizes) > 1,
            any(words(each)[-1] != kind for each in names),
            -min(_similarity(_plain(name), each) for each in names),
        )

    def _places(self, name: str, axes: tuple[int, ...], whole: str) -> Iterator[Choice]:
        """Yield the port's tensor `whole`, or a part of this tensor if other tensors of the module fit into the
        rest."""
        shape, own = _turned(self.theirs[name].shape, axes), self.port[whole].shape
        if shape == own:
            yield Choice((Place(whole, axes),))
        if (name in self.lacking or whole in self.spare) and _regroups(shape, own):
            yield Choice((Place(whole, axes, shape),))
        if name not in self.lacking or whole not in self.spare:
            return
        if (axis := _axis_of(shape, own)) is None:
            return
        beside = [each for each in self.beside[_module(name)] if each != name]
        others = [_turned(self.lacking[each], axes) for each in beside if len(self.lacking[each]) == len(axes)]
        sizes, rest = [each[axis] for each in others if _axis_of(each, own) == axis], own[axis] - shape[axis]
        orders = {pair for pair in itertools.permutations([0, 0, *sorted(sizes)[:6]], 3) if sum(pair) == rest}
        for start in sorted({0, *(sum(pair[:end]) for pair in orders for end in (1, 2, 3))} if orders else ()):
            yield Choice((Place(whole, axes, axis=axis, part=(start, start + shape[axis])),))

    def _joined(self, name: str, axes: tuple[int, ...]) -> Iterator[Choice]:
        """Yield choices of several tensors that the reference fuses, if they are in one module, or in modules of one
        module."""
        shape, modules = self.theirs[name].shape, defaultdict[tuple[int, int, str], list[tuple[int, Place]]](list)
        for each, own in self.spare.items() if name in self.lacking else ():
            for axis, size, place in _as_parts(each, own, shape, axes):
                names = each.split(".")
                for depth in range(len(names)):
                    modules[-depth, axis, ".".join(names[:depth])].append((size, place))
        joined = set[str]()
        for (_, axis, _), every in sorted(modules.items(), key=operator.itemgetter(0)):
            fitting = [each for each in every if each[1].name not in joined]
            runs = [*itertools.islice(_runs(fitting, shape[axis]), MANY + 1)] if len(fitting) <= 12 else []
            if not 0 < len(runs) <= MANY:
                by_size = ([each for each in fitting if each[0] == size] for size in {size: 0 for size, _ in fitting})
                runs = [run for group in by_size for run in _windows(group, shape[axis])]
            for run in runs:
                joined |= {place.name for place in run}
                yield Choice(run, axis)

    def run(self) -> Paired:
        """Improve the first guess until the port computes each value that depends directly on a tensor."""
        now, confirmed = self._guessed(), set[str]()
        known = self._heard(now)
        for step in self.program.steps:
            names, has = self._told(step), self._has(step, known)
            tells = not has and short(step) not in VIEWS and fingerprint(self.program.values[step.output]) is not None
            if set(names) <= confirmed and not tells:
                continue
            makers = self._makers(step)
            before = {name for number in makers for name in self._told(self.program.steps[number])}
            if not has:
                earlier = {
                    name
                    for each in makers
                    for number in self._makers(self.program.steps[each])
                    for name in self.used[number]
                }
                free = [*names, *sorted(before - confirmed)]
                if not before <= confirmed and (len(free) > 3 or not earlier <= confirmed):
                    continue  # Too many tensors are not confirmed before this step, so a wrong value proves nothing.
                if self._is_incomplete(step) if names else not free and self._is_passed(step, known):
                    continue
                others = self._alternatives(now, free, confirmed) if free else self._exchanges(now, step, confirmed)
                parts = () if confirmed & {*free} else self._by_parts(now, step, free, confirmed)
                for tried in itertools.chain(parts, itertools.islice(others, 64)):
                    heard = self._heard(tried)
                    if self._has(step, heard):
                        now, known = tried, heard
                        break
                else:
                    continue
            if not {*names, *before} <= confirmed:
                self.heard.clear()
            confirmed |= {*names, *before}
        only = {name for name, choices in self.choices.items() if len(choices) == 1}
        return Paired(self._as_in_other_layers(now, confirmed), frozenset(confirmed | only))

    def _heard(self, choices: Choices) -> Known:
        """Return the port's values. A step that shows no value of the port leaves the same choices to the next step."""
        key = frozenset(choices.items())
        if key not in self.heard:
            self.heard[key] = self.known(choices)
        return self.heard[key]

    def _told(self, step: Step) -> list[str]:
        """Return the tensors that a step uses. A map of zeros, such as the first state of a recurrence, tells nothing
        about its matrix."""
        values = [self.program.values[item.index] for _, item in references(step) if item.index in self.program.values]
        is_zero = any(value.ndim and not value.any() for value in values)
        return [each for each in self.used.get(step.number, []) if not is_zero or self.theirs[each].ndim == 1]

    def _guessed(self) -> Choices:
        found = self._filled({})
        if missing := next((name for name in self.theirs if name not in found), None):
            shapes = [f"{each} {value.shape}" for each, value in self.port.items()]
            raise PortError(
                f"The reference's tensor {missing} {self.theirs[missing].shape} has no counterpart in the port, which "
                f"has {', '.join(shapes[:8])} …; for fused tensors, "
                "pass both implementations as loaders, with --checkpoint FOLDER."
            )
        used = Counter[str]()
        for choice in found.values():
            used.update({place.name: place.of(self.port).size for place in choice.places})
        for name, value in self.port.items():
            if used[name] < value.size or name not in used:
                says = f"Some elements of the port's tensor {name} {value.shape} match no tensor of the reference."
                raise PortError(says)
        return found

    def _filled(self, choices: Choices) -> Choices:
        """Extend `choices` by a choice for each other tensor. Prefer modules of the port that already hold tensors of
        the same reference module. If each choice of a tensor overlaps earlier choices, these tensors choose again."""
        found, owners, lost = {**choices}, defaultdict[str, set[str]](set), Counter[str]()
        for name, choice in choices.items():
            for place in choice.places:
                owners[place.name].add(name)
        waiting = [name for name in self.theirs if name not in choices]
        for name in itertools.islice(waiting, 8 * len(self.theirs)):
            beside = {each for other in self.modules[name] if other in found for each in found[other].modules}
            best, conflicts = None, list[str]()
            for number, choice in enumerate(self.choices[name]):
                near = {
                    each for place in choice.places for each in owners[place.name] if choice.overlaps([found[each]])
                }
                key = sum(1 + lost[each] for each in near), beside.isdisjoint(choice.modules), number
                if near.isdisjoint(choices) and (best is None or key < best[0]):
                    best, conflicts = (key, choice), sorted(near)
            if best is None:
                continue
            for each in conflicts:
                for place in found.pop(each).places:
                    owners[place.name].discard(each)
            lost.update(conflicts)
            waiting += conflicts
            found[name] = best[1]
            for place in best[1].places:
                owners[place.name].add(name)
        return {name: found[name] for name in self.theirs if name in found}

    def _with(self, now: Choices, wanted: Choices, fixed: Collection[str]) -> Choices | None:
        """Return `now` with the choices `wanted`. If a choice in `now` overlaps `wanted`, the tensor gets another
        choice; the choices of `fixed` do not change. Return None if a tensor gets no choice."""
        others = {name: each for name, each in now.items() if name not in wanted}
        kept = wanted | {name: each for name, each in others.items() if not each.overlaps(wanted.values())}
        if not kept.keys() >= {*fixed} or any(
            one.overlaps([other]) for one, other in itertools.combinations(wanted.values(), 2)
        ):
            return None
        for known in (kept, {name: each for name, each in kept.items() if name in wanted or name in fixed}):
            if len(found := self._filled(known)) == len(now):
                return found
        return None

    def _by_parts(self, now: Choices, step: Step, names: Sequence[str], fixed: Collection[str]) -> Iterator[Choices]:
        """Find the tensors of the port for the parts of fused tensors, whose step is `step`. Each trial loads the parts
        into neighboring modules of the port. A module fits if the port then computes the part of the step's value."""
        parts, taken = self._parts(step), [now[name] for name in fixed]
        ways = [*itertools.product((self.is_turned, not self.is_turned), (0, 1))]
        for is_turned, axis in ways if names and len(parts) > 1 else ():
            axes = {name: min(axis, self.theirs[name].ndim - 1) for name in names}
            places = {name: self._places_of_parts(name, axes[name], len(parts), is_turned, taken) for name in names}
            modules = [each for each in places[names[0]] if all(each in of for of in places.values())]
            made = functools.partial(self._of_modules, places, axes)
            fitting = set[str]()
            for start in range(len(modules)) if len(parts) <= len(modules) else ():
                window = (modules * 2)[start : start + len(parts)]
                heard = self._heard({name: each for name, each in now.items() if name in fixed} | made(window))
                values = [self.program.values[index] for index in parts]
                told = [
                    heard.equal_to(value, self.within.get(index, 0.0))
                    for index, value in zip(parts, values, strict=True)
                ]
                fitting |= {module for module, has in zip(window, told, strict=True) if has}
            found = [each for each in modules if each in fitting]
            groups = [found[start : start + len(parts)] for start in range(0, len(found), len(parts))]
            for group in (each for each in groups if len(each) == len(parts)):
                orders = itertools.permutations(group) if len(group) < 5 else [group]
                yield from filter(None, (self._with(now, made(order), fixed) for order in orders))
            if groups:
                return

    def _of_modules(
        self, places: Mapping[str, Mapping[str, Place]], axes: Mapping[str, int], modules: Sequence[str]
    ) -> Choices:
        return {name: Choice(tuple(of[each] for each in modules), axes[name]) for name, of in places.items()}

    def _places_of_parts(
        self, name: str, axis: int, count: int, is_turned: bool, taken: list[Choice]
    ) -> dict[str, Place]:
        """Map modules of the port to the places for one of `count` parts of a fused tensor."""
        shape, found = self.theirs[name].shape, dict[str, Place]()
        orders = [*itertools.permutations(range(len(shape)))]
        for axes in orders[::-1] if is_turned else orders:
            for each, own in self.spare.items() if name in self.lacking else ():
                for along, size, place in _as_parts(each, own, shape, axes):
                    if along == axis and size * count == shape[axis] and not Choice((place,)).overlaps(taken):
                        found.setdefault(each.rpartition(".")[0], place)
        return found

    def _parts(self, step: Step) -> list[int]:
        """Return the equal parts into which later steps split the value of a step."""
        found, later = list[tuple[int, int, int]](), [step]
        for each in later:
            size = self.program.values[each.output].numel()
            if short(each) in PARTS and size < self.program.values[step.output].numel():
                start = each.args[2] if short(each) in ("select", "slice") else 0
                found += [(start, each.number, index) for index in each.outputs]
            elif short(each) in VIEWS or short(each) in PARTS or each is step:
                later += [self.program.steps[number] for number in sorted(self.program.readers_of(each.number))]
        return [index for _, _, index in sorted(found)]

    def _exchanges(self, now: Choices, step: Step, confirmed: Collection[str]) -> Iterator[Choices]:
        """Swap choices of tensors that share an operand, such as a feed-forward's gate and up projection."""
        for one in self._makers(step):
            names = self._with_matrix(one)
            beside = [other for other in self.used if self._operands(one) & self._operands(other)]
            free = {*names, *(name for number in beside for name in self.used[number])}
            fixed = [name for name in confirmed if name not in free]
            pairs = ([*zip(names, self._with_matrix(other), strict=False)] for other in beside if other != one)
            swapped = ({each: now[other] for pair in pairs for each, other in (pair, pair[::-1])} for pairs in pairs)
            fitting = (each for each in swapped if all(each[name] in self.choices[name] for name in each))
            swaps = filter(None, (self._with(now, each, fixed) for each in fitting))
            others = self._alternatives(now, names, self.theirs.keys() - free)
            for choices in itertools.chain(swaps, self._by_parts(now, self.program.steps[one], names, fixed), others):
                if (key := frozenset(choices.items() - now.items())) not in self.tried:
                    self.tried.add(key)
                    yield choices

    def _with_matrix(self, number: int) -> list[str]:
        """Return the tensors of a step; if the step only adds a bias, also the matrix of the map before the step."""
        names = self.used[number]
        before = self._makers(self.program.steps[number]) if all(self.theirs[each].ndim == 1 for each in names) else []
        return [*(self.used[before[0]] if len(before) == 1 else ()), *names]

    def _is_incomplete(self, step: Step) -> bool:
        """Return whether the next step adds a bias, so that the port may not compute the value of this step."""
        readers = self.program.readers_of(step.number)
        while readers and all(short(self.program.steps[each]) in VIEWS for each in readers):
            readers = {reader for each in readers for reader in self.program.readers_of(each)}
        return bool(readers) and all(short(self.program.steps[each]) == "add" and each in self.used for each in readers)

    def _is_passed(self, step: Step, known: Known) -> bool:
        """Return whether the port computes a later value that depends on a step, by another formula."""
        later = [step.number]
        for number in later:
            later += [each for each in self.program.readers_of(number) if each not in later and len(later) < 32]
        return any(self._has(self.program.steps[number], known) for number in later[1:])

    def _makers(self, step: Step) -> list[int]:
        between = ancestors([step.number], self.program.makers, self.used)
        return sorted(self.used.keys() & set().union(*map(self.program.makers, between)))

    def _operands(self, number: int) -> set[int]:
        roots = {behind_views(self.program, item.index) for _, item in references(self.program.steps[number])}
        return roots - self.program.given.keys()

    def _has(self, step: Step, known: Known) -> bool:
        """Return whether the port computes a step's value, or all parts into which later steps split this value."""
        # The mean of a `native_layer_norm`, which is another output, does not depend on the weight.
        compared = step.outputs if short(step) in PARTS else (step.output,)
        return all(self._has_value(each, known) for each in compared)

    def _has_value(self, index: int, known: Known) -> bool:
        value, within = self.program.values[index], self.within.get(index, 0.0)
        if known.equal_to(value, within):
            return True
        for axis in (axis for axis, size in enumerate(value.shape) if value.ndim > 1 and size in self.depths):
            if all(known.equal_to(each, within) for each in value.unbind(axis)):
                return True  # the port computes this value row by row, as for experts
        readers = [self.program.steps[number] for number in self.program.readers.get(index, ())]
        views = [each for each in readers if short(each) in VIEWS]
        parts = [each for each in readers if short(each) in PARTS]
        return any(self._has(each, known) for each in views) or (
            bool(parts) and all(self._has(each, known) for each in parts)
        )

    def _alternatives(self, now: Choices, names: Sequence[str], fixed: Collection[str]) -> Iterator[Choices]:
        """Yield other choices for `names`, likely choices first, without changing `fixed` tensors."""

        def unlikeliness(chosen: Sequence[tuple[int, Choice]]) -> tuple[int, int]:
            return len({choice.owners for _, choice in chosen}), sum(number for number, _ in chosen)

        taken = [now[name] for name in fixed]
        free = {name: [] if name in fixed else self.choices[name] for name in names}
        ways = [
            [now[name], *(each for each in free[name] if each != now[name] and not each.overlaps(taken))]
            for name in names
        ]
        for chosen in sorted(itertools.product(*map(enumerate, ways)), key=unlikeliness):
            wanted = {name: choice for name, (_, choice) in zip(names, chosen, strict=True)}
            found = self._with(now, wanted, fixed)
            if found is not None and found != now:
                yield found

    def _as_in_other_layers(self, now: Choices, confirmed: Collection[str]) -> Choices:
        """Repeat, for each unconfirmed tensor, the confirmed choice of the same tensor in another layer."""
        for name in [each for each in now if each not in confirmed]:
            for wanted in _of_other_layers(name, {each: now[each] for each in sorted(confirmed)}):
                if wanted in self.choices[name] and (found := self._with(now, {name: wanted}, confirmed)) is not None:
                    now = found
                    break
        return now


def _of_other_layers(name: str, known: Choices) -> Iterator[Choice]:
    """Yield choices like the choices of tensors whose names differ from `name` in one number. An early number is more
    likely to be the number of a layer."""
    ours, alike = NUMBER.findall(name), defaultdict[int, list[tuple[str, str, Choice]]](list)
    for other, choice in known.items():
        theirs = NUMBER.findall(other)
        if (
            _pattern(other) == _pattern(name)
            and len(differ := [n for n, each in enumerate(ours) if each != theirs[n]]) == 1
        ):
            alike[differ[0]].append((theirs[differ[0]], ours[differ[0]], choice))
    for (old, new, choice), number in itertools.product((each for n in sorted(alike) for each in alike[n]), range(3)):
        renamed = [_renumbered(place.name, old, new, number) for place in choice.places]
        yield replace(
            choice, places=tuple(replace(place, name=each) for place, each in zip(choice.places, renamed, strict=True))
        )


def _renumbered(name: str, old: str, new: str, number: int) -> str:
    """Replace `old` by `new`, where `old` is a number in a name, at its occurrence `number`."""
    found = [each.span() for each in NUMBER.finditer(name) if each[0] == old]
    if number >= len(found):
        return name
    start, end = found[number]
    return f"{name[:start]}{new}{name[end:]}"
