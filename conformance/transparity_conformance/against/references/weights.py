"""The reference's tensors in a port whose tensors have other names: where each is is told by what the port computes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from transparity_conformance.against.edits.edit import VIEWS, references, short
from transparity_conformance.against.edits.parameters import given_of
from transparity_conformance.against.rounding import shares
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.program import Program, Step
from transparity_conformance.matching.values import Known, fingerprint
from transparity_conformance.running.process.running import ask

MOST_TRIES = 64
"""Places that are tried for the tensors of one operation, the likely ones first. A bound on time alone."""

Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Place:
    """A part of a tensor of the port, which holds a part of one of the reference."""

    name: str
    axis: int = 0
    start: int = 0
    size: int = -1
    """-1 for the whole tensor."""
    is_transposed: bool = False

    def part(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the part as a view."""
        whole = values[self.name]
        if self.size < 0:
            return whole
        return whole[(slice(None),) * self.axis + (slice(self.start, self.start + self.size),)]


@dataclass(frozen=True)
class Paired:
    """Where the reference's tensors are in the port."""

    places: Mapping[str, Place]
    confirmed: frozenset[str] = frozenset()
    """The tensors with which the port computes what the reference computes with them."""

    def values(self, theirs: Tensors, port: Tensors) -> dict[str, np.ndarray]:
        """Return the tensors of the port."""
        made = {name: np.array(value) for name, value in port.items()}
        for name, place in self.places.items():
            place.part(made)[...] = theirs[name].T if place.is_transposed else theirs[name]
        return made

    @property
    def notes(self) -> list[str]:
        """What the report says of tensors that were paired without evidence."""
        guessed = [f"{name} → {place.name}" for name, place in self.places.items() if name not in self.confirmed]
        return [f"paired by the order of the tensors, not by values: {', '.join(guessed)}"] if guessed else []


def paired(
    program: Program, dtype: str, theirs: Tensors, port: Tensors, listen: Callable[[Tensors], Sequence[Operation]]
) -> tuple[Paired, dict[str, np.ndarray]]:
    """Find the port's tensors for those of a reference; return them with their values.

    Args:
        program: a call of the reference.
        dtype: the precision of the port.
        theirs, port: the tensors of both by name, in the order in which they are defined.
        listen: takes tensors of the port; returns its operations of the same call.

    Raises `PortError` with the name of a tensor that has no counterpart.
    """
    whole = theirs
    theirs = dict(_in_parts(theirs, port))
    search = _Search(program, shares(program, dtype), theirs, port, listen)
    found = search.run(Paired(_guessed(theirs, port)), whole)
    return found, found.values(theirs, port)


def _in_parts(theirs: Tensors, port: Tensors) -> Iterator[tuple[str, np.ndarray]]:
    """The reference's tensors; one that the port has in equal parts along an axis is in parts."""
    shapes = {_sizes(value) for value in port.values()}
    for name, value in theirs.items():
        parts = _split(value, shapes) if _sizes(value) not in shapes else None
        yield from [(name, value)] if parts is None else ((f"{name}[{n}]", each) for n, each in enumerate(parts))


def _split(value: np.ndarray, shapes: set[tuple[int, ...]]) -> list[np.ndarray] | None:
    for axis, count in itertools.product(range(value.ndim), (3, 2)):
        if value.shape[axis] % count == 0:
            parts = np.split(value, count, axis)
            if _sizes(parts[0]) in shapes:
                return parts
    return None


def _sizes(value: np.ndarray) -> tuple[int, ...]:
    return tuple(sorted(value.shape))


def _guessed(theirs: Tensors, port: Tensors) -> dict[str, Place]:
    """Places by shape, in the order in which tensors are defined."""
    free = [place for name, value in port.items() for place in _places(name, value, theirs)]
    shapes = {name: value.shape for name, value in port.items()}
    is_turned = _are_turned(theirs, port)
    found: dict[str, Place] = {}
    for name, value in theirs.items():
        fitting = [place for place in free if _fits(place, value, port)]
        if not fitting:
            raise PortError(
                f"The reference's tensor {name} {value.shape} has no counterpart in the port, which has "
                f"{', '.join(f'{each} {shape}' for each, shape in list(shapes.items())[:8])} …"
            )
        place = fitting[0]
        free.remove(place)
        is_square = value.ndim == 2 and value.shape[0] == value.shape[1]
        turned = is_turned if is_square else place.part(port).shape != value.shape
        found[name] = replace(place, is_transposed=turned)
    if free:
        raise PortError(f"The port's tensor {free[0].name} {shapes[free[0].name]} has no counterpart in the reference.")
    return found


def _places(name: str, value: np.ndarray, theirs: Tensors) -> Iterator[Place]:
    """The places in a tensor of the port: itself, or the equal parts that are tensors of the reference."""
    shapes = {_sizes(each) for each in theirs.values()}
    if _sizes(value) in shapes or (parts := _split(value, shapes)) is None:
        yield Place(name)
        return
    axis = next(axis for axis in range(value.ndim) if value.shape[axis] != parts[0].shape[axis])
    size = parts[0].shape[axis]
    yield from (Place(name, axis, number * size, size) for number in range(len(parts)))


def _fits(place: Place, value: np.ndarray, port: Tensors) -> bool:
    shape = place.part(port).shape
    return shape in (value.shape, value.shape[::-1])


def _are_turned(theirs: Tensors, port: Tensors) -> bool:
    """Whether the port's maps are transposed, which those that are not square tell."""
    ours = {value.shape for value in port.values() if value.ndim == 2}
    maps = {value.shape for value in theirs.values() if value.ndim == 2 and value.shape[0] != value.shape[1]}
    return len({shape for shape in maps if shape[::-1] in ours}) > len({shape for shape in maps if shape in ours})


class _Search:
    """Exchanges the places of tensors until the port computes what the reference computes."""

    def __init__(
        self,
        program: Program,
        within: Mapping[int, float],
        theirs: Tensors,
        port: Tensors,
        listen: Callable[[Tensors], Sequence[Operation]],
    ) -> None:
        self.program, self.within, self.theirs, self.port, self.listen = program, within, theirs, port, listen

    def run(self, now: Paired, whole: Tensors) -> Paired:
        """Return the pairs with which the port has the value of each operation that uses tensors, where there are."""
        known, confirmed = self._known(now), set[str]()
        for step in self.program.steps:
            names = [name for name in self._names(step) if name in whole]
            parts = [each for each in self.theirs if each in names or each.rpartition("[")[0] in names]
            if not parts or set(parts) <= confirmed:
                continue
            if not self._has(step, known):
                for tried in itertools.islice(self._alternatives(now, parts, confirmed), MOST_TRIES):
                    heard = self._known(tried)
                    if self._has(step, heard):
                        now, known = tried, heard
                        break
                else:
                    continue
            confirmed |= set(parts)
        return replace(now, confirmed=frozenset(confirmed))

    def _known(self, pairs: Paired) -> Known:
        operations = self.listen(pairs.values(self.theirs, self.port))
        return Known({index: fingerprint(each.value) for index, each in enumerate(operations)})

    def _names(self, step: Step) -> list[str]:
        """The names of the parameters that a step computes with."""
        if short(step) in VIEWS:
            return []
        given = {given_of(self.program, item) for _, item in references(step)}
        return [self.program.names[index] for index in sorted(given & self.program.parameters)]

    def _has(self, step: Step, known: Known) -> bool:
        """Whether the port has the value of a step, or of the parts into which it is split."""
        waiting, values = [step], self.program.values
        while waiting:
            made = waiting.pop()
            if any(known.among(fingerprint(values[index]), self.within.get(index, 0.0)) for index in made.outputs):
                return True
            readers = (self.program.steps[number] for number in self.program.readers_of(made.number))
            waiting += [each for each in readers if short(each) in {*VIEWS, "split", "slice", "select", "chunk"}]
        return False

    def _alternatives(self, now: Paired, parts: Sequence[str], confirmed: set[str]) -> Iterator[Paired]:
        """The pairs with other places of some tensors, which are exchanged with those that had these places."""
        choices = [list(self._choices(now, name, confirmed)) for name in parts]
        combined = sorted(itertools.product(*map(enumerate, choices)), key=lambda each: sum(n for n, _ in each))
        for chosen in combined:
            places = dict(now.places)
            for name, (_, place) in zip(parts, chosen, strict=True):
                other = next(each for each, old in places.items() if _same(old, place))
                places[other] = self._turned_for(other, places[name])
                places[name] = place
            if places != now.places:
                yield Paired(places)

    def _choices(self, now: Paired, name: str, confirmed: set[str]) -> Iterator[Place]:
        for other, place in sorted(now.places.items(), key=lambda each: each[0] != name):
            value = self.theirs[name]
            if other in confirmed or not _fits(place, value, self.port):
                continue
            turned = self._turned_for(name, place)
            yield turned
            if value.ndim == 2 and value.shape[0] == value.shape[1]:
                yield replace(turned, is_transposed=not turned.is_transposed)

    def _turned_for(self, name: str, place: Place) -> Place:
        """A place for a tensor, transposed if that has its shape."""
        shape, value = place.part(self.port).shape, self.theirs[name]
        is_square = len(set(value.shape)) == 1
        return place if is_square else replace(place, is_transposed=shape != value.shape)


def _same(a: Place, b: Place) -> bool:
    return (a.name, a.start) == (b.name, b.start)


def fill(
    program: Program, dtype: str, theirs: Tensors, forward: Any, listen: Callable[[], Sequence[Operation]]
) -> list[str]:
    """Fill the tensors of a port with those of a reference; return notes for the report.

    Args:
        program, dtype, theirs: as for `paired`.
        forward: a port with methods that read and write its tensors.
        listen: returns the port's operations of the same call.
    """

    def heard(values: Tensors) -> Sequence[Operation]:
        ask(forward, "assign", dict(values))
        return listen()

    port = ask(forward, "tensors")
    if not port:
        raise PortError("The port has no tensors to fill; expected a module, or a loader of a folder (--checkpoint).")
    found, values = paired(program, dtype, theirs, port, heard)
    ask(forward, "assign", values)
    return found.notes
