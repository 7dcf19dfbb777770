"""Find the port's tensor for each tensor of the reference, if the tensors have different names.

A pairing assigns a tensor of the port to each tensor of the reference. The search tries several pairings: it loads the
reference's weights into the port, and compares the values that both implementations compute.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from transparity_conformance.running.process.running import ask

NUMBER = re.compile(r"\d+")

PARTS = {"split", "split_with_sizes", "slice", "select", "chunk"}
"""Operations that return parts of a tensor."""

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Place:
    """A tensor of the port, or a part of a tensor, into which a tensor of the reference is loaded."""

    name: str
    axis: int = 0
    start: int = 0
    size: int = -1
    """The number of rows or columns in the part; -1 for the whole tensor."""
    is_transposed: bool = False

    def part(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return a view of this tensor or part, given the port's tensors by name."""
        whole = values[self.name]
        if self.size < 0:
            return whole
        return whole[(slice(None),) * self.axis + (slice(self.start, self.start + self.size),)]


@dataclass(frozen=True)
class Cut:
    """A way to cut a fused tensor along an axis. The other implementation has a separate tensor for each part."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def has_order(self) -> bool:
        """Whether the sizes of the parts differ, so that another order of the parts is another cut."""
        return len(set(self.sizes)) > 1

    def starts(self) -> Iterator[tuple[int, int]]:
        return zip(itertools.accumulate((0, *self.sizes)), self.sizes, strict=False)


Cuts = Mapping[tuple[int, str], Cut]
"""The cuts of fused tensors, by (side, name). The side is 1 for a tensor of the port, -1 for the reference."""


@dataclass(frozen=True)
class Paired:
    places: Mapping[str, Place]
    """For each tensor of the reference, the port's tensor into which it is loaded."""
    cuts: Cuts
    confirmed: frozenset[str] = frozenset()
    """The reference's tensors whose pairing is confirmed, because the port computes the same values."""

    def values(self, theirs: Tensors, port: Tensors) -> dict[str, np.ndarray]:
        made = {name: np.array(value) for name, value in port.items()}
        for name, place in self.places.items():
            place.part(made)[...] = theirs[name].T if place.is_transposed else theirs[name]
        return made

    def fill(self, theirs: Tensors, forward: Any) -> None:
        port = ask(forward, "tensors")
        ask(forward, "assign", self.values(dict(_in_parts(theirs, self.cuts)), port))

    @property
    def notes(self) -> list[str]:
        guessed = [f"{name} → {place.name}" for name, place in self.places.items() if name not in self.confirmed]
        return (
            [f"these tensors are matched only by their order, which no activation confirms: {', '.join(guessed)}"]
            if guessed
            else []
        )


def paired(
    program: Program, dtype: str, theirs: Tensors, forward: Any, listen: Callable[[], Sequence[Operation]]
) -> Paired:
    """Find the port's tensor for each tensor of the reference (`theirs`). `program` is a recorded call of the
    reference, and `listen` returns the port's operations in the same call. Raise `PortError` if a tensor has no
    counterpart."""
    port = ask(forward, "tensors")
    if not port:
        raise PortError("The port has no tensors to fill; expected a module, or a loader of a folder (--checkpoint).")

    def listen_with(values: Tensors) -> Sequence[Operation]:
        ask(forward, "assign", dict(values))
        return listen()

    cuts, within = _cuts(theirs, port), shares(program, dtype)
    best, shown = None, 0
    for each in _orders(cuts):
        parts = dict(_in_parts(theirs, each))
        search = _Search(program, within, theirs, parts, port, listen_with)
        found = search.run(Paired(_guessed(parts, port, each), each))
        ordered = {part for part, place in found.places.items() if _has_order(each, part, place)}
        if ordered <= found.confirmed:
            return found
        if len(ordered & found.confirmed) > shown:
            best, shown = found, len(ordered & found.confirmed)
    if best is None:
        fused = sorted({_pattern(name) for (_, name), cut in cuts.items() if cut.has_order})
        raise PortError(
            "The port's activations do not determine the order of the parts in the fused tensors "
            f"{', '.join(fused)}; pass both implementations as loaders, with --checkpoint FOLDER."
        )
    return best


def _has_order(cuts: Cuts, part: str, place: Place) -> bool:
    """Return whether a pair of tensors belongs to a cut into parts of different sizes."""
    cut = cuts.get((1, place.name)) or cuts.get((-1, part.rpartition("[")[0]))
    return cut is not None and cut.has_order


Surplus = Counter[tuple[int, ...]]
"""The number of the port's tensors minus the number of the reference's tensors, for each sorted shape."""


@dataclass(frozen=True)
class _Group:
    """Tensors of equal shape whose names differ only in numbers, such as layer numbers."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    side: int
    """1 for the port, -1 for the reference."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(sorted(self.shape))

    @property
    def module(self) -> list[str]:
        """The path two levels above these tensors; for `layers.#.query.weight`, this is `layers.#`."""
        return _pattern(self.names[0]).split(".")[:-2]


def _groups(tensors: Tensors, side: int) -> list[_Group]:
    found: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for name, value in tensors.items():
        found.setdefault((_pattern(name), value.shape), []).append(name)
    return [_Group(tuple(names), shape, side) for (_, shape), names in found.items()]


def _cuts(theirs: Tensors, port: Tensors) -> Cuts:
    """Cut fused tensors of the port and the reference, as long as a cut leaves fewer tensors without a counterpart."""
    groups = [*_groups(port, 1), *_groups(theirs, -1)]
    surplus: Surplus = Counter()
    for group in groups:
        surplus[group.sizes] += group.side * len(group.names)
    cuts: dict[tuple[int, str], Cut] = {}
    for may_turn in (False, True):
        while options := list(_options(surplus, groups, may_turn=may_turn)):
            whole, cut, surplus = min(options, key=lambda each: _left(each[2]))
            groups.remove(whole)
            cuts |= {(whole.side, name): cut for name in whole.names}
    return cuts


def _options(surplus: Surplus, groups: Sequence[_Group], *, may_turn: bool) -> Iterator[tuple[_Group, Cut, Surplus]]:
    """Yield (group, cut, surplus after the cut) for each cut that leaves fewer tensors without a counterpart."""
    spare = [each for each in groups if surplus[each.sizes] * each.side >= len(each.names)]
    for whole in spare:
        for cut in _possible(whole, spare, may_turn=may_turn):
            after = _after(surplus, whole, cut)
            if _left(after) < _left(surplus):
                yield whole, cut, after


def _left(surplus: Surplus) -> int:
    return sum(map(abs, surplus.values()))


def _after(surplus: Surplus, whole: _Group, cut: Cut) -> Surplus:
    found, count = surplus.copy(), whole.side * len(whole.names)
    found[whole.sizes] -= count
    for size in cut.sizes:
        found[tuple(sorted(_with_size(whole.shape, cut.axis, size)))] += count
    return found


def _with_size(shape: tuple[int, ...], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _possible(whole: _Group, groups: Sequence[_Group], *, may_turn: bool) -> Iterator[Cut]:
    """Yield the cuts of fused tensors whose parts are two or three groups of the other implementation."""
    others = [each for each in groups if each.side != whole.side and len(each.names) == len(whole.names)]
    for axis, total in enumerate(whole.shape):
        sizes = {each: _size_along(each.shape, whole.shape, axis, may_turn=may_turn) for each in others}
        fitting = [each for each, size in sizes.items() if size]
        for run in (fitting[start : start + count] for count in (3, 2) for start in range(len(fitting) - count + 1)):
            parts = tuple(sizes[each] for each in run)
            if sum(parts) == total and all(each.module == run[0].module for each in run):
                yield Cut(axis, parts)


def _size_along(part: tuple[int, ...], whole: tuple[int, ...], axis: int, *, may_turn: bool) -> int:
    """Return the size of a part along an axis of the fused tensor, or 0 if the sizes on other axes differ."""
    for shape in (part, part[::-1]) if may_turn else (part,):
        if len(shape) == len(whole) and _with_size(shape, axis, 0) == _with_size(whole, axis, 0):
            return shape[axis]
    return 0


def _orders(cuts: Cuts) -> Iterator[Cuts]:
    """Yield the cuts with their parts in every order. Tensors with equally many parts always have the same order."""
    tried: list[Cuts] = []
    for order in itertools.permutations(range(max((len(cut.sizes) for cut in cuts.values()), default=0))):
        made = {
            whole: replace(cut, sizes=tuple(cut.sizes[number] for number in order if number < len(cut.sizes)))
            for whole, cut in cuts.items()
        }
        if made not in tried:
            tried.append(made)
            yield made


def _pattern(name: str) -> str:
    return NUMBER.sub("#", name)


def _in_parts(theirs: Tensors, cuts: Cuts) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the reference's tensors by name; in place of a fused tensor, yield its parts."""
    for name, value in theirs.items():
        if (cut := cuts.get((-1, name))) is None:
            yield name, value
            continue
        parts = np.split(value, np.cumsum(cut.sizes)[:-1], cut.axis)
        yield from ((f"{name}[{number}]", each) for number, each in enumerate(parts))


def _guessed(theirs: Tensors, port: Tensors, cuts: Cuts) -> dict[str, Place]:
    """Pair tensors of equal (or transposed) shapes in the order of definition, as a first guess."""
    free = [place for name in port for place in _places(name, cuts.get((1, name)))]
    shapes = {name: value.shape for name, value in port.items()}
    ours = {value.shape for value in port.values() if value.ndim == 2}
    maps = {value.shape for value in theirs.values() if value.ndim == 2 and value.shape[0] != value.shape[1]}
    # Square matrices count as transposed if most other matrices are transposed in the port.
    is_turned = len({shape for shape in maps if shape[::-1] in ours}) > len(maps & ours)
    found: dict[str, Place] = {}
    for name, value in theirs.items():
        fitting = [place for place in free if _fits(place, value, port)]
        if not fitting:
            raise PortError(
                f"The reference's tensor {name} {value.shape} has no counterpart in the port, which has "
                f"{', '.join(f'{each} {shape}' for each, shape in list(shapes.items())[:8])} …; for fused tensors, "
                "pass both implementations as loaders, with --checkpoint FOLDER."
            )
        place = fitting[0]
        free.remove(place)
        is_square = value.ndim == 2 and value.shape[0] == value.shape[1]
        turned = is_turned if is_square else place.part(port).shape != value.shape
        found[name] = replace(place, is_transposed=turned)
    if free:
        raise PortError(f"The port's tensor {free[0].name} {shapes[free[0].name]} has no counterpart in the reference.")
    return found


def _places(name: str, cut: Cut | None) -> list[Place]:
    return [Place(name)] if cut is None else [Place(name, cut.axis, start, size) for start, size in cut.starts()]


def _fits(place: Place, value: np.ndarray, port: Tensors) -> bool:
    shape = place.part(port).shape
    return shape in (value.shape, value.shape[::-1])


class _Search:
    def __init__(
        self,
        program: Program,
        within: Mapping[int, float],
        whole: Tensors,
        theirs: Tensors,
        port: Tensors,
        listen: Callable[[Tensors], Sequence[Operation]],
    ) -> None:
        self.program, self.within, self.theirs, self.port, self.listen = program, within, theirs, port, listen
        self.parts: dict[int, list[str]] = {}
        """The names of the tensors that each step uses, by the step's index."""
        for step in program.steps:
            given = {given_of(program, item) for _, item in references(step)} & program.parameters
            names = {program.names[index] for index in given} & whole.keys()
            parts = [each for each in theirs if each in names or each.rpartition("[")[0] in names]
            if parts and short(step) not in VIEWS:
                self.parts[step.number] = parts
        self.exchanged = set[frozenset[int]]()

    def run(self, now: Paired) -> Paired:
        """Improve a pairing until the port computes the value of each step that uses tensors, if possible."""
        known, confirmed = self._known(now), set[str]()
        for step in self.program.steps:
            parts, has = self.parts.get(step.number, []), self._has(step, known)
            tells = not has and short(step) not in VIEWS and fingerprint(self.program.values[step.output]) is not None
            if set(parts) <= confirmed and not tells:
                continue
            if not has:
                before = {name for number in self._makers(step) for name in self.parts[number]}
                if parts and not before <= confirmed:
                    continue  # Before this step, some tensor is not confirmed, so a wrong value proves nothing.
                some = self._alternatives(now, parts, confirmed) if parts else self._exchanges(now, step)
                for tried in itertools.islice(some, 64):
                    heard = self._known(tried)
                    if self._has(step, heard):
                        now, known = tried, heard
                        break
                else:
                    continue
            confirmed |= set(parts)
        return replace(now, places=_as_in_other_layers(now.places, confirmed), confirmed=frozenset(confirmed))

    def _exchanges(self, now: Paired, step: Step) -> Iterator[Paired]:
        """Yield pairings in which two steps with a common operand swap their tensors. For example, the pairing may have
        confused the gate and the up projection of a feed-forward."""
        for one, other in itertools.product(self._makers(step), self.parts):
            pair = frozenset((one, other))
            if one == other or pair in self.exchanged or not self._operands(one) & self._operands(other):
                continue
            self.exchanged.add(pair)
            places, mine, yours = dict(now.places), self.parts[one], self.parts[other]
            if [self.theirs[each].shape for each in mine] == [self.theirs[each].shape for each in yours]:
                for a, b in zip(mine, yours, strict=True):
                    places[a], places[b] = now.places[b], now.places[a]
                yield Paired(places, now.cuts)

    def _makers(self, step: Step) -> list[int]:
        """Return the last step that uses tensors on each path to a step."""
        between = ancestors([step.number], self.program.makers, self.parts)
        return sorted(self.parts.keys() & set().union(*map(self.program.makers, between)))

    def _operands(self, number: int) -> set[int]:
        """Return the computed inputs of a step. If an input is a view, return the value that the view rearranges."""
        roots = {behind_views(self.program, item.index) for _, item in references(self.program.steps[number])}
        return roots - self.program.given.keys()

    def _known(self, pairs: Paired) -> Known:
        operations = self.listen(pairs.values(self.theirs, self.port))
        return Known({index: fingerprint(each.value) for index, each in enumerate(operations)})

    def _has(self, step: Step, known: Known) -> bool:
        """Return whether the port computes a step's value, or all parts into which later steps split the value."""
        every = all if short(step) in PARTS else any
        if every(known.equal_to(self.program.values[each], self.within.get(each, 0.0)) for each in step.outputs):
            return True
        readers = [self.program.steps[number] for number in self.program.readers_of(step.number)]
        views = [each for each in readers if short(each) in VIEWS]
        parts = [each for each in readers if short(each) in PARTS]
        return any(self._has(each, known) for each in views) or (
            bool(parts) and all(self._has(each, known) for each in parts)
        )

    def _alternatives(self, now: Paired, parts: Sequence[str], confirmed: set[str]) -> Iterator[Paired]:
        """Yield pairings in which `parts` and other tensors of the reference swap their tensors of the port."""
        choices = [list(self._choices(now, name, confirmed)) for name in parts]

        def unlikeliness(chosen: Sequence[tuple[int, Place]]) -> tuple[int, int]:
            owners = {(place.name.rpartition(".")[0], place.start // max(place.size, 1)) for _, place in chosen}
            return len(owners), sum(number for number, _ in chosen)

        for chosen in sorted(itertools.product(*map(enumerate, choices)), key=unlikeliness):
            places = dict(now.places)
            for name, (_, place) in zip(parts, chosen, strict=True):
                other = next(each for each, old in places.items() if _same(old, place))
                places[other] = self._turned_for(other, places[name])
                places[name] = place
            if places != now.places:
                yield Paired(places, now.cuts)

    def _choices(self, now: Paired, name: str, confirmed: set[str]) -> Iterator[Place]:
        """Yield the port's tensors that fit a name: the current tensor first, transposes of square tensors last."""
        value = self.theirs[name]
        others = sorted(now.places.items(), key=lambda each: each[0] != name)
        found = [place for other, place in others if other not in confirmed and _fits(place, value, self.port)]
        found = [self._turned_for(name, place) for place in found]
        yield from found
        if value.ndim == 2 and value.shape[0] == value.shape[1]:
            yield from (replace(place, is_transposed=not place.is_transposed) for place in found)

    def _turned_for(self, name: str, place: Place) -> Place:
        """Return `place`, marked as transposed if the tensor `name` only fits transposed."""
        shape, value = place.part(self.port).shape, self.theirs[name]
        is_square = len(set(value.shape)) == 1
        return place if is_square else replace(place, is_transposed=shape != value.shape)


def _as_in_other_layers(places: Mapping[str, Place], confirmed: set[str]) -> dict[str, Place]:
    """Pair each unconfirmed tensor like the confirmed tensor with the same role in another layer."""
    found = dict(places)
    for name in [each for each in places if each not in confirmed]:
        for known in confirmed:
            ours, theirs = NUMBER.findall(name), NUMBER.findall(known)
            if not ours or ours == theirs or _pattern(name) != _pattern(known):
                continue
            place, numbers = found[known], dict(zip(theirs, ours, strict=True))
            parts = re.split(r"(\d+)", place.name)
            wanted = replace(place, name="".join(str(numbers.get(each, each)) for each in parts))
            holder = next((each for each, old in found.items() if _same(old, wanted)), None)
            if holder is not None and holder not in confirmed:
                found[holder], found[name] = found[name], wanted
                break
    return found


def _same(a: Place, b: Place) -> bool:
    return (a.name, a.start) == (b.name, b.start)
