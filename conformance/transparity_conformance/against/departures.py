"""Where a port and the reference part, and the edits of the reference that give the port's numbers."""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from transparity_conformance.against.edits import FITTED, SIMPLE, VIEWS, Context, Edit, short
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.values import Known, agreeing, fingerprint, prints, shares
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.listening.program import Change, Program, Step, Values
from transparity_conformance.oracle.budgets import rounded_to


@dataclass(frozen=True, eq=False)
class Recorded:
    """A call of a port: its operations in order, and its answer."""

    operations: Sequence[Operation]
    answer: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "prints", self._prints())
        object.__setattr__(self, "relevant", self._before_answer())
        object.__setattr__(self, "readers", _readers(self.operations))

    prints: Mapping[int, np.ndarray | None] = field(init=False, repr=False)
    relevant: frozenset[int] = field(init=False, repr=False)
    """Operations that the answer is computed from."""
    readers: Mapping[int, Sequence[int]] = field(init=False, repr=False)

    def _prints(self) -> dict[int, np.ndarray | None]:
        """Whole numbers that are computed from others, such as chosen experts, may be equal by chance: they tell
        nothing."""
        found, has_fraction = dict[int, np.ndarray | None](), set[int]()
        for index, each in enumerate(self.operations):
            is_whole = np.array_equal(each.value, np.round(each.value))
            if not is_whole or not has_fraction.isdisjoint(each.inputs):
                has_fraction.add(index)
            found[index] = None if is_whole and index in has_fraction else fingerprint(each.value)
        return found

    def _before_answer(self) -> frozenset[int]:
        wanted = [i for i, each in enumerate(self.operations) if each.value.size == self.answer.size]
        wanted = [
            i
            for i in wanted
            if np.array_equal(np.ravel(self.operations[i].value), np.ravel(self.answer), equal_nan=True)
        ]
        waiting = wanted[-1:] or [len(self.operations) - 1]
        seen: set[int] = set()
        while waiting:
            index = waiting.pop()
            if index not in seen:
                seen.add(index)
                waiting += self.operations[index].inputs
        return frozenset(seen)

    def rounded(self) -> dict[str, list[np.ndarray]]:
        """Return the values that a shorter dtype can hold, by its name."""
        values = [self.operations[i].value for i in sorted(self.relevant) if self.prints[i] is not None]
        with np.errstate(over="ignore"):
            return {
                dtype: [value for value in values if np.array_equal(rounded_to(value, dtype), value)]
                for dtype in ("bfloat16", "float16")
            }


def _readers(operations: Sequence[Operation]) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for index, operation in enumerate(operations):
        for each in operation.inputs:
            readers.setdefault(each, []).append(index)
    return readers


@dataclass(frozen=True, eq=False)
class Comparison:
    """A port beside one run of the reference."""

    changes: Mapping[int, Change]
    values: Values
    matched: Mapping[int, Sequence[int]]
    """The reference's values that have the numbers of each operation of the port."""
    lost: Sequence[int]
    """Operations of the port behind which nothing is matched any more."""
    agrees: bool
    """Whether the answers are equal."""
    shares: Mapping[int, float]
    """What rounding explains of each value of this run."""


@dataclass(frozen=True, eq=False)
class Departure:
    """One place where the port departs from the reference."""

    operation: int
    """The port's first operation there."""
    step: Step
    """The reference's step that has no counterpart, or that was edited."""
    edit: Edit | None
    """What makes the reference give the port's numbers; None: nothing was found."""
    steps: Sequence[int] = ()
    """The steps that were edited: one for each layer."""
    others: Sequence[Edit] = ()
    """Edits that explain it as well."""
    matched: Collection[int] = frozenset()
    """The port's operations that had counterparts before."""
    made: Any = None
    """The port's value from which the reference continued, without an edit."""


class Comparer:
    """Compares a port with a reference, and looks for edits."""

    def __init__(
        self,
        program: Program,
        port: Recorded,
        dtype: str,
        main: Collection[str],
        numbers: Sequence[float],
        clock: Clock,
    ) -> None:
        self.program, self.port, self.dtype, self.clock = program, port, dtype, clock
        self.shares = shares(program, dtype)
        self.flow, self.numbers = DataFlow(program, main), numbers
        self.flow.rounded = port.rounded()
        self.known = Known({i: port.prints[i] for i in port.relevant})
        self.relevant = self._before_answer()
        self._refused: set[tuple[Any, str]] = set()

    def refuse(self, step: Step, edit: Edit) -> None:
        """Leave an edit out of further searches."""
        self._refused.add((step.site, edit.says))

    def _before_answer(self) -> frozenset[int]:
        """The steps that the answer is computed from."""
        program = self.program
        waiting, seen = [program.answer], set[int]()
        while waiting:
            number = program.maker.get(waiting.pop(), -1)
            if number >= 0 and number not in seen:
                seen.add(number)
                waiting += program.steps[number].inputs
        return frozenset(seen)

    def compared(self, changes: Mapping[int, Change], shares: Mapping[int, float] | None = None) -> Comparison:
        """Run the reference with changes, and match its values with the port's."""
        values, shares = self.program.run(changes) if changes else self.program.values, shares or self.shares
        matched: dict[int, list[int]] = {}
        for index, print_ in prints(values, [*values]).items():
            if self.program.maker.get(index, -1) in self.relevant or index in self.program.given:
                for operation in self.known.among(print_, shares.get(index, 0.0)):
                    matched.setdefault(operation, []).append(index)
        agrees = agreeing(values[self.program.answer], self.port.answer, shares[self.program.answer])
        return Comparison(changes, values, matched, self._lost(matched), agrees, shares)

    def measured(self, now: Comparison) -> Comparison:
        """Compare again within what rounding explains of the reference with its changes, which may round worse."""
        try:
            return self.compared(now.changes, shares(self.program, self.dtype, now.changes))
        except Exception:  # noqa: BLE001 - an edit that cannot be run in the precision is judged as without it
            return now

    def _lost(self, matched: Collection[int]) -> list[int]:
        """The port's operations, in order, that lead to nothing that is matched."""
        port, leading = self.port, set[int]()
        for index in sorted(port.relevant, reverse=True):
            if index in matched or any(each in leading for each in port.readers.get(index, ())):
                leading.add(index)
        return [index for index in sorted(port.relevant - leading) if port.prints[index] is not None]

    def fronts(self, now: Comparison) -> tuple[list[int], list[int]]:
        """The first operations of the port, and steps of the reference, without counterparts: all that they are made
        from has one."""
        lost = set(now.lost)
        port = [index for index in now.lost if lost.isdisjoint(self.port.operations[index].inputs)]
        missing, program = self._missing(now), self.program
        makers = {
            number: {program.maker.get(index, -1) for index in program.steps[number].inputs} for number in missing
        }
        by_input = {number for number in missing if program.steps[number].output in self.flow.passes} or missing
        first = [number for number in sorted(by_input) if by_input.isdisjoint(makers[number])]
        shared = set(self._counterparts(now, port))
        return port, [number for number in first if shared & makers[number]] or first

    def _missing(self, now: Comparison) -> set[int]:
        """The reference's steps that lead to nothing that is matched."""
        have = {index for indices in now.matched.values() for index in indices}
        program, leading = self.program, set[int]()
        for number in sorted(self.relevant, reverse=True):
            step = program.steps[number]
            reads = {reader for index in step.outputs for reader in program.readers.get(index, ())}
            if not have.isdisjoint(step.outputs) or not leading.isdisjoint(reads):
                leading.add(number)
        return set(self.relevant - leading)

    def departures(self, most: int) -> tuple[list[Departure], Comparison]:
        """Return the places where the port departs, and the comparison with all edits."""
        found: list[Departure] = []
        now = self.compared({})
        while not now.agrees and len(found) < most:
            port, steps = self.fronts(now)
            if not port and not steps:
                break
            is_known = any(self._is_unexplained(number, found) for number in steps)
            edited = None if is_known else self._edited(now, port, steps)
            step = edited or self._continued(now, port, steps)
            if step is None:
                break
            departure, after = step
            found.append(departure)
            if after is None:
                break
            now = after
        return (self._fewest(found, now.shares), now) if now.agrees else (found, now)

    def _is_unexplained(self, number: int, found: Sequence[Departure]) -> bool:
        """Return whether a line was found before, in another layer, and nothing explained it."""
        line = self.program.steps[number].places[:1]
        return any(each.edit is None and each.step.places[:1] == line for each in found)

    def _fewest(self, found: list[Departure], shares: Mapping[int, float]) -> list[Departure]:
        """Leave out edits without which the answer is the port's, too, or is with another edit of another departure."""
        for one in [each for each in found if each.edit is not None]:
            rest = [each for each in found if each is not one]
            without = self.compared_or_none(self.changes_of(rest), shares) if rest else None
            if without is not None and without.agrees and not without.lost:
                return self._fewest(rest, shares)
            for other in rest:
                for edit in [other.edit, *other.others]:
                    if edit is None:
                        continue
                    tried = [replace(each, edit=edit, others=()) if each is other else each for each in rest]
                    result = self.compared_or_none(self.changes_of(tried), shares)
                    if result is not None and result.agrees and not result.lost:
                        return self._fewest(tried, shares)
        return found

    def changes_of(self, found: Sequence[Departure]) -> dict[int, Change]:
        """Return the changes of all departures together."""
        changes: dict[int, Change] = {}
        for each in found:
            if each.edit is not None:
                changes = self._changes(each.edit, each.steps, changes)
            elif each.made is not None:
                changes |= {number: (lambda _, made=each.made: made) for number in each.steps}
        return changes

    def reference_line(self, departure: Departure) -> Source | None:
        """The innermost line that runs what was edited, and nothing that was not."""
        edited, step = set(departure.steps), departure.step
        steps = [step] if departure.edit is None else departure.edit.steps(self.flow, step)
        shared = [place for place in step.places if all(place in each.places for each in steps)]
        alike = [n for n in self.program.lines[step.line] if n in self.relevant and n not in edited]
        for place in shared:
            if departure.edit is None or not any(place in self.program.steps[n].places for n in alike):
                return step.stack[step.places.index(place)]
        return step.stack[0] if step.stack else None

    def port_line(self, departure: Departure) -> Source | None:
        """The innermost line of the port's operation that runs none which has a counterpart."""
        operations, operation = self.port.operations, self.port.operations[departure.operation]
        for line in operation.stack:
            alike = (i for i in departure.matched if operations[i].name == operation.name)
            if not any(line in operations[i].stack and operations[i].stack[:1] == operation.stack[:1] for i in alike):
                return line
        return operation.source

    def _edited(
        self, now: Comparison, port: Sequence[int], steps: Sequence[int]
    ) -> tuple[Departure, Comparison] | None:
        """Find the edit behind which the least is lost, among the nearest that explain where the port departs."""
        if self._is_disordered(now, port) and (found := self._reordered(now)):
            return found
        best: list[tuple[tuple[Any, ...], Edit, Step, list[int], Comparison]] = []
        with contextlib.suppress(OutOfTime):
            further, passed = 0, deque[Any]([[]] * LAG)
            for ring in itertools.chain(self._rings(now, port, steps), [[]] * LAG):
                passed.append(ring)
                shown = self._shown(now, port, ring, SIMPLE), self._shown(now, port, passed.popleft(), FITTED)
                for edit, number in itertools.chain(*shown):
                    for numbers in self._scopes(number, now):
                        tried = self.compared_or_none(self._changes(edit, numbers, now.changes), now.shares)
                        if tried is not None and self._is_further(tried, now, port):
                            key = (not tried.agrees, len(tried.lost), edit.rank, -len(numbers))
                            best.append((key, edit, self.program.steps[number], numbers, tried))
                further += bool(best)
                differs, _, rank, *_ = min((each[0] for each in best), default=(True, 0, RANK_OF_FITTED))
                if further > LAG or (not differs and rank < RANK_OF_FITTED):
                    break
        best.sort(key=lambda item: item[0])
        for place, (_, edit, step, numbers, tried) in enumerate(best[:MEASURED]):
            if not tried.agrees:
                tried = self.measured(tried)
                key = (not tried.agrees, len(tried.lost), edit.rank, -len(numbers))
                best[place] = (key, edit, step, numbers, tried)
        best.sort(key=lambda item: item[0])
        if not best:
            return None
        key, edit, step, numbers, tried = best[0]
        others = {each[1].says: each[1] for each in best[1:] if each[0][:2] == key[:2] and each[1].says != edit.says}
        at = next((i for i in port if i not in set(tried.lost)), port[0] if port else len(self.port.operations) - 1)
        return Departure(at, step, edit, numbers, tuple(others.values()), now.matched.keys()), tried

    def _is_disordered(self, now: Comparison, port: Sequence[int]) -> bool:
        """Return whether what the port's first operations are given has the numbers of theirs in another order."""
        given = {each for index in port for each in self.port.operations[index].inputs}
        return any(self._in_another_order(now, operation) is not None for operation in given)

    def _reordered(self, now: Comparison) -> tuple[Departure, Comparison] | None:
        """Find the edit of the first step whose numbers the port has in another order, which shows only later."""
        orders = ((each, self._in_another_order(now, each)) for each in sorted(now.matched))
        operation, number = next((each for each in orders if each[1] is not None), (0, None))
        if number is None or number in now.changes:
            return None
        step, theirs = self.program.steps[number], self.port.operations[operation].value
        for maker in (*SIMPLE, *FITTED):
            for edit in maker(self.program, self.flow, step, Context(self.numbers)):
                if (step.site, edit.says) in self._refused or not self._makes(edit, step, theirs, now):
                    continue
                for numbers in self._scopes(number, now):
                    tried = self.compared_or_none(self._changes(edit, numbers, now.changes), now.shares)
                    if tried is not None and tried.agrees:
                        return Departure(operation, step, edit, numbers, (), now.matched.keys()), tried
        return None

    def _makes(self, edit: Edit, step: Step, theirs: np.ndarray, now: Comparison) -> bool:
        """Return whether an edit makes a value of the port, number by number."""
        try:
            change = edit.make(self.program, self.flow, step)
            made = None if change is None else change(now.values)
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return False
        made = made[0] if isinstance(made, tuple | list) else made
        return made is not None and agreeing(made, theirs, now.shares.get(step.output, 0.0))

    def _in_another_order(self, now: Comparison, operation: int) -> int | None:
        """The step whose result an operation of the port has in the same shape and another order, and in no other
        way."""
        theirs = self.port.operations[operation].value
        alike = [i for i in now.matched.get(operation, ()) if tuple(now.values[i].shape) == theirs.shape]
        is_same = any(agreeing(now.values[i], theirs, now.shares.get(i, 0.0)) for i in alike)
        return None if is_same or not alike else self.program.maker.get(alike[0])

    def compared_or_none(
        self, changes: Mapping[int, Change], shares: Mapping[int, float] | None = None
    ) -> Comparison | None:
        """Compare with changes; a change that fails is one that the port did not make."""
        try:
            return self.compared(changes, shares)
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return None

    def _is_further(self, tried: Comparison, now: Comparison, port: Sequence[int]) -> bool:
        """Return whether an edit explains what it was tried for, and loses nothing."""
        lost = set(tried.lost)
        return tried.agrees or (len(tried.lost) < len(now.lost) and not lost.issuperset(port) and lost <= set(now.lost))

    def _rings(self, now: Comparison, port: Sequence[int], steps: Sequence[int]) -> Iterator[list[int]]:
        """Yield the steps by their distance from where the programs part: forward among those without counterparts,
        and backward to the last that has one."""
        missing, program = self._missing(now), self.program
        ring, seen = sorted({*steps, *self._counterparts(now, port)}), set[int]()
        while ring:
            seen |= set(ring)
            yield [number for number in ring if number in self.relevant and number not in now.changes]
            around = set[int]()
            for number in ring:
                step = program.steps[number]
                if number in missing or short(step) in VIEWS:
                    around.update(program.maker[index] for index in step.inputs if index in program.maker)
                reads = {reader for index in step.outputs for reader in program.readers.get(index, ())}
                around.update(reads & missing)
            ring = sorted(around - seen)

    def _shown(
        self, now: Comparison, port: Sequence[int], ring: Sequence[int], makers: Sequence[Any]
    ) -> Iterator[tuple[Edit, int]]:
        """Yield the edits of the steps of a ring that soon give numbers of the port which nothing had."""
        lost = Known({index: self.port.prints[index] for index in now.lost})
        wanted = [print_ for index in port if (print_ := self.port.prints[index]) is not None]
        context = Context(self.numbers, wanted)
        for number in ring:
            step, made = self.program.steps[number], set[bytes]()
            for maker in makers:
                for edit in maker(self.program, self.flow, step, context):
                    self.clock.check()
                    if (step.site, edit.says) not in self._refused and self._shows(edit, step, now, lost, made):
                        yield edit, number

    def _scopes(self, number: int, now: Comparison) -> list[list[int]]:
        """The steps that an edit is made at: wherever the line runs, in every layer, and once."""
        program, step, scopes = self.program, self.program.steps[number], list[list[int]]()
        for scope in (program.lines[step.line], program.places[step.site], [number]):
            left = [each for each in scope if each in self.relevant and each not in now.changes]
            scopes += [] if left in scopes else [left]
        return scopes

    def _counterparts(self, now: Comparison, port: Sequence[int]) -> list[int]:
        """The steps that made what the port's operations were given."""
        makers = self.program.maker
        given = {each for index in port for each in self.port.operations[index].inputs}
        return sorted({makers[value] for each in given for value in now.matched.get(each, ()) if value in makers})

    def _changes(self, edit: Edit, numbers: Sequence[int], before: Mapping[int, Change]) -> dict[int, Change]:
        return {**before, **self.changes_at(edit, numbers)}

    def changes_at(self, edit: Edit, numbers: Collection[int]) -> dict[int, Change]:
        """Return the changes of an edit at some steps, where it applies."""
        return changes_at(edit, numbers, self.program, self.flow)

    def flow_of(self, program: Program) -> DataFlow:
        """Return the flow of data through the program of another call."""
        main = {self.program.names[index] for index in self.flow.passes if index in self.program.given}
        return DataFlow(program, main)

    def _shows(self, edit: Edit, step: Step, now: Comparison, lost: Known, made: set[bytes]) -> bool:
        """Return whether an edit soon gives numbers of the port that nothing had; most edits end here.

        `made` are the results of the edits of this step so far; one that makes the same is not tried again.
        """
        tries, values = 0, now.values
        try:
            change = edit.make(self.program, self.flow, step)
            result = None if change is None else change(values)
            if result is None:
                return False
            first = result[0] if isinstance(result, tuple | list) else result
            key = first.contiguous().numpy().tobytes()
            if key in made or first.equal(values[step.output]):
                return False
            made.add(key)
            for after, values in self.program.after(step.number, result, now.values, now.changes):
                if short(after) in VIEWS and after is not step:
                    continue
                for index in after.outputs:
                    if (print_ := fingerprint(values[index])) is not None:
                        if lost.among(print_, now.shares.get(index, 0.0)):
                            return True
                        tries += 1
                if tries >= TRIES:
                    return False
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return False
        answer = self.program.answer
        return agreeing(values[answer], self.port.answer, now.shares[answer])

    def _continued(
        self, now: Comparison, port: Sequence[int], steps: Sequence[int]
    ) -> tuple[Departure, Comparison | None] | None:
        """Continue from the port's value where no edit explains it: the step of the reference that has as many numbers
        and is most alike makes that instead."""
        pairs = []
        for index in port or now.lost[:1]:
            for number in steps:
                for nearby in self._around(number):
                    if nearby not in now.changes and (made := self._in_layout(index, nearby, now)) is not None:
                        pairs.append((made[0], index, nearby, made[1]))
        tried = sorted(pairs, key=lambda pair: -pair[0])
        for _, index, number, tensor in tried[:CONTINUATIONS]:
            after = self.compared_or_none({**now.changes, number: lambda _, tensor=tensor: tensor}, now.shares)
            if after is not None and len(after.lost) < len(now.lost):
                return Departure(
                    index, self.program.steps[number], None, [number], (), now.matched.keys(), tensor
                ), after
        if not steps and not port:
            return None
        step = self.program.steps[steps[0] if steps else max(self.relevant)]
        found = Departure(port[0] if port else len(self.port.operations) - 1, step, None, [], (), now.matched.keys())
        return found, None  # nothing to continue from

    def _around(self, number: int) -> list[int]:
        """A step, and those that read what it makes, as far as the same line runs them."""
        steps, line = self.program.steps, self.program.steps[number].places[:1]
        found, waiting = [number], [number]
        while waiting:
            for index in steps[waiting.pop()].outputs:
                for reader in self.program.readers.get(index, ()):
                    if reader not in found and steps[reader].places[:1] == line:
                        found.append(reader)
                        waiting.append(reader)
        return found

    def _in_layout(self, operation: int, number: int, now: Comparison) -> tuple[float, Any] | None:
        """The port's value in the layout of a step's, with how alike the two are; None for another count of numbers."""
        import torch

        ours, theirs = now.values.get(self.program.steps[number].output), self.port.operations[operation].value
        if ours is None or ours.numel() != theirs.size or not ours.is_floating_point():
            return None
        best: tuple[float, Any] | None = None
        flat = np.clip(ours.numpy().ravel(), -1e30, 1e30)
        plain = np.squeeze(theirs)
        for axes in itertools.permutations(range(plain.ndim)) if plain.ndim <= 5 else ():
            turned = np.transpose(plain, axes)
            if [n for n in turned.shape if n > 1] != [n for n in ours.shape if n > 1] and turned.shape != ours.shape:
                continue
            moved = np.clip(turned.ravel(), -1e30, 1e30)
            norm = float(np.linalg.norm(moved) * np.linalg.norm(flat))
            alike = float(moved @ flat) / norm if norm else 0.0
            if best is None or alike > best[0]:
                best = alike, torch.from_numpy(turned.copy()).reshape(ours.shape)
        return best


MEASURED = 3
"""Edits of which it is measured how the reference rounds with them."""

TRIES = 8
"""Values behind an edit that are compared before it is given up. A bound on time alone."""


def changes_at(edit: Edit, numbers: Collection[int], program: Program, flow: DataFlow) -> dict[int, Change]:
    """Return the changes of an edit at some steps of a program, where it applies."""
    made = {number: edit.make(program, flow, program.steps[number]) for number in numbers}
    return {number: change for number, change in made.items() if change is not None}


LAG = 2
"""How much nearer an edit is tried that is fitted, or one of many."""

RANK_OF_FITTED = 3
"""The rank from which on an edit is fitted, or one of many: a simpler one may be a little further away."""

CONTINUATIONS = 4
"""Layouts that are tried to continue from a value of the port."""
