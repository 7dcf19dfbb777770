"""Search for an edit of the reference after which the reference computes the port's values."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance import work
from transparity_conformance.against.comparer import PARTS, Comparer, Comparison
from transparity_conformance.against.edits.edit import VIEWS, At, Context, Edit, short
from transparity_conformance.against.edits.elements import masks, orders
from transparity_conformance.against.edits.fitted import limits, other_numbers, scales, softcaps
from transparity_conformance.against.edits.numbers import numbers, roundings, tables
from transparity_conformance.against.edits.operands import functions, operands, passed
from transparity_conformance.against.edits.parameters import layers, parameters, uses
from transparity_conformance.against.edits.segments import (
    LONGEST,
    elsewhere,
    exchanges,
    operands_alone,
    segments,
    steps_before,
    writes,
)
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.listening.program import Step, float64_defaults
from transparity_conformance.matching.values import Known, agreeing

Maker = Callable[[At, Context], Iterator[Edit]]

SIMPLE: tuple[Maker, ...] = (
    passed,
    roundings,
    numbers,
    other_numbers,
    softcaps,
    functions,
    operands_alone,
    writes,
    segments,
    elsewhere,
    steps_before,
    parameters,
    layers,
    masks,
)

OF_TABLES: tuple[Maker, ...] = (uses, tables)
"""Edits of constant tables, which the search tries first because few steps read a table."""

LATER: tuple[Maker, ...] = (orders, uses, operands, scales, limits)
"""Edits with many variants per step, or with fitted numbers, which the search tries last."""

LAG = 2
"""The search tries the edits in `LATER` this number of rounds after the edits in `SIMPLE`. If an explanation is not
final, the search stops after the same number of further rounds. If the answers still differ, the search first looks for
two segments whose opposite order explains the answer: the later segment may end several rounds away."""

RANK_OF_FITTED = 3
"""The search looks for a simpler edit after an explanation of at least this rank."""

MEASURED = 3

SHARE = 0.25
"""The share of the remaining work that one search may use; see the module `work`."""

TRIES = 8


@dataclass(frozen=True, eq=False)
class Explanation:
    edit: Edit
    step: Step
    steps: Sequence[int]
    extent: int
    """The number of steps in the edited segment, without views; 1 unless the edit changes one segment."""
    after: Comparison
    is_denied: bool = False
    """Whether the port computes the unedited value, and either reads this value in its first unmatched operation, or
    does not use this value in its answer."""

    @property
    def is_computed(self) -> bool:
        """Whether the port computes the edited value, and not only later values."""
        return any(self.after.have.get(index) for index in self.step.outputs)

    @property
    def is_final(self) -> bool:
        """Whether the search may end: the edit is simple, the answers agree, and the port uses the edited value. A
        single step may have a simpler edit than several steps."""
        is_simple = self.edit.rank + (self.extent > 1) < RANK_OF_FITTED
        return self.after.agrees and self.is_computed and not self.is_denied and is_simple

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a sort key. Among explanations of equal `worth`, prefer simple edits, short segments and many edited
        steps."""
        parts = self.edit.says.count("` in `")
        return (*self.worth, self.edit.rank, self.extent, short(self.step) in VIEWS, -len(self.steps), parts)

    @property
    def worth(self) -> tuple[bool, int, bool]:
        return not self.after.agrees, len(self.after.lost), self.is_denied


class EditSearch:
    def __init__(self, comparer: Comparer, tried: Sequence[float], clock: Clock) -> None:
        self.comparer, self.numbers, self.clock = comparer, tried, clock
        self.program, self.port = comparer.program, comparer.port
        self.failed = False
        """Whether an edited value equaled a value of the port, but a later step raised an exception."""
        self._refused: dict[Any, set[str]] = {}
        self._unused = Known(
            {index: each for index, each in self.port.prints.items() if index not in self.port.relevant}
        )
        self._reserved = 0.0

    def refuse(self, step: Step, edit: Edit) -> None:
        self._refused.setdefault(None if edit.is_everywhere else step.site, set()).add(edit.says)

    def _is_refused(self, edit: Edit, step: Step) -> bool:
        refused = self._refused.get(None if edit.is_everywhere else step.site)
        return refused is not None and edit.says in refused

    def explanations(self, now: Comparison, port: Sequence[int], steps: Sequence[int]) -> list[Explanation]:
        """Return edits that make the reference compute some of the port's first unmatched values, best first."""
        if found := self._of_order(now, port):
            return [found]
        lost = Known({index: self.port.prints[index] for index in now.lost})
        wanted = [print_ for index in port if (print_ := self.port.prints[index]) is not None]
        values = {index: self.port.operations[index].value for index in now.lost}
        context = Context(self.numbers, wanted, values, now.values, [self._passed(index, now) for index in port])
        best: list[Explanation] = []
        left = self.clock.work.left
        self._reserved = left * (1 - SHARE)
        with contextlib.suppress(OutOfTime), float64_defaults():
            further = 0
            for tried in self._rounds(now, port, steps):
                is_late = further > LAG
                for steps_of, makers in [(tried[0][0], (exchanges,))] if is_late else tried:
                    for edit, number in self._shown(now, lost, context, steps_of, makers):
                        explaining = self._explaining(edit, number, now, port)
                        best += (each for each in explaining if each.after.agrees or not (is_late and each.after.lost))
                further += not all(each.is_denied for each in best)
                first = min(best, key=lambda each: each.key, default=None)
                if first and (first.is_final or further > (LAG if first.after.agrees else 2 * LONGEST)):
                    break
        if best:
            self.clock.reserve(left)  # leave the same amount of work for later searches
        return self._ranked(best)

    def _passed(self, operation: int, now: Comparison) -> set[int]:
        return {value for given in self.port.operations[operation].inputs for value in now.matched.get(given, ())}

    def _ranked(self, found: list[Explanation]) -> list[Explanation]:
        """Sort the explanations, after measuring the tolerances of the best few."""
        found.sort(key=lambda each: each.key)
        if found and found[0].after.agrees and not found[0].after.lost:
            return found  # no explanation is better
        measured: dict[Any, Comparison] = {}  # edits with the same result have the same rounding errors
        for place, each in enumerate(found):
            same = *each.after.lost, each.after.values[self.program.answer].numpy().tobytes()
            if each.after.agrees or (same not in measured and len(measured) == MEASURED):
                continue
            if same not in measured:
                measured[same] = self.comparer.measured(each.after)
            found[place] = dataclasses.replace(each, after=measured[same])
        return sorted(found, key=lambda each: each.key)

    def _explaining(self, edit: Edit, number: int, now: Comparison, port: Sequence[int]) -> Iterator[Explanation]:
        wider = (each for each in edit.wider if not self._is_refused(each, self.program.steps[number]))
        scoped = ((each, scope) for each in (edit, *wider) for scope in self._scopes(each, number, now))
        for tried, scope in scoped:
            changes = self.comparer.changes(tried, scope, now.changes)
            steps = [each for each in scope if each in changes]
            after = self.comparer.tried(changes, now)
            if after is None:
                self.failed = True
                continue
            lost = set(after.lost)
            is_less = len(lost) < len(now.lost) and not lost.issuperset(port) and lost <= set(now.lost)
            if after.agrees or is_less:
                extent = len(tried.steps(self.comparer.at(number))) if len(tried.behind) == 1 else 1
                step = self.program.steps[number]
                yield Explanation(tried, step, steps, extent, after, self._is_denied(step, now, port))

    def _is_denied(self, step: Step, now: Comparison, port: Sequence[int]) -> bool:
        read = {each for index in port for each in self.port.operations[index].inputs}
        return short(step) not in VIEWS and any(
            not read.isdisjoint(now.have.get(i, ())) or self._unused.equal_to(now.values[i], now.shares.get(i, 0.0))
            for i in step.outputs
        )

    def _scopes(self, edit: Edit, number: int, now: Comparison) -> list[list[int]]:
        program, step, scopes = self.program, self.program.steps[number], list[list[int]]()
        if edit.is_everywhere:
            return [[each for each in sorted(self.comparer.relevant) if each not in now.changes]]
        for scope in (program.lines[step.line], program.places[step.site], [number]):
            left = [each for each in scope if each in self.comparer.relevant and each not in now.changes]
            scopes += [] if left in scopes else [left]
        return scopes

    def _rounds(
        self, now: Comparison, port: Sequence[int], steps: Sequence[int]
    ) -> Iterator[list[tuple[Sequence[int], Sequence[Maker]]]]:
        """Yield groups of steps, each with functions that yield edits of these steps."""
        yield [(self._readers_of_tables(now), OF_TABLES)]
        passed = deque[list[int]]([[]] * LAG)
        for ring, behind in itertools.chain(self._rings(now, port, steps), [([], [])] * LAG):
            passed.append(ring)
            yield [(ring, SIMPLE), (passed.popleft(), LATER), (behind, [numbers])]

    def _readers_of_tables(self, now: Comparison) -> list[int]:
        program, found = self.program, dict[Any, int]()
        for number in sorted(self.comparer.missing(now)):
            if number not in now.changes and any(self._is_table(index) for index in program.steps[number].inputs):
                found.setdefault(program.steps[number].site, number)
        return [*found.values()]

    def _is_table(self, index: int) -> bool:
        value = self.program.values[index]
        is_constant = index in self.program.given and index not in self.program.parameters
        return is_constant and index not in self.comparer.flow.passes and bool(value.is_floating_point())

    def _rings(
        self, now: Comparison, port: Sequence[int], steps: Sequence[int]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield groups of steps by their distance from the first difference; leave out steps before a matched step. If
        the answer's error is slight, also yield groups of these steps, because a slightly wrong value may match."""
        missing, program = self.comparer.missing(now), self.program
        ring, behind = {*steps, *self.comparer.counterparts(now, port)}, set[int]()
        seen, sites, is_slight = set[int](), set[Any](), self.comparer.is_slight(now)

        def new(group: set[int]) -> list[int]:
            first: dict[Any, int] = {}  # an edit of one layer is tried in all layers
            for number in sorted(group):
                if number in self.comparer.relevant and number not in now.changes:
                    first.setdefault(program.steps[number].site, number)
            found = [number for site, number in first.items() if site not in sites]
            sites.update(first)
            return found

        while ring:
            seen |= ring | behind
            yield new(ring), new(behind)
            around, further = set[int](), {each for number in behind for each in program.makers(number)}
            for number in ring:
                is_matched = any(now.have.get(index) for index in program.steps[number].outputs)
                is_view = short(program.steps[number]) in VIEWS
                (further if is_matched and not is_view else around).update(program.makers(number))
                around |= program.readers_of(number) & missing
            ring = around - seen
            behind = further - ring - seen if is_slight else set()

    def _shown(
        self, now: Comparison, lost: Known, context: Context, ring: Sequence[int], makers: Sequence[Maker]
    ) -> Iterator[tuple[Edit, int]]:
        for number in ring:
            self.clock.check()
            made = set[bytes]()
            for edit in self._edits(number, makers, context):
                self.clock.check()
                if self.clock.work.left < self._reserved:
                    raise OutOfTime
                if self._shows(edit, number, now, lost, made) or self._shows_together(edit, number, now):
                    yield edit, number

    def _edits(self, number: int, makers: Sequence[Maker], context: Context) -> Iterator[Edit]:
        at = self.comparer.at(number)
        for maker in makers:
            yield from (edit for edit in maker(at, context) if not self._is_refused(edit, at.step))

    def _shows(self, edit: Edit, number: int, now: Comparison, lost: Known, made: set[bytes]) -> bool:
        """Return whether a value computed from the edited result equals an unmatched value or the answer of the port.
        Return False if `made` contains the result."""
        result = self._result(edit, number, now)
        first = _first(result)
        if first is None:
            return False
        key = first.contiguous().numpy().tobytes()
        if key in made or first.equal(now.values[self.program.steps[number].output]):
            return False
        made.add(key)
        tries, values = 0, now.values
        try:
            for step, values in self.program.after(number, result, now.values, now.changes):
                for index in step.results if short(step) not in VIEWS or step.number == number else ():
                    if lost.equal_to(values[index], now.shares.get(index, 0.0)):
                        return True
                    is_new = short(step) not in PARTS
                    tries += is_new and values[index].is_floating_point() and values[index].numel() > 1
                if tries >= TRIES:
                    return False
        except Exception:  # noqa: BLE001 - an edit may pass invalid arguments to an operation
            return False
        return self.comparer.is_answer(values, now.shares)

    def _shows_together(self, edit: Edit, number: int, now: Comparison) -> bool:
        """Return whether an edit of all runs of a line leaves fewer operations unmatched, even if the edit of one run
        does not."""
        is_exchange = edit.is_everywhere and edit.kind == "exchanged"
        runs = self._scopes(edit, number, now)[0] if is_exchange else self._runs(edit, number, now)
        if not runs:
            return False
        after = self.comparer.tried(self.comparer.changes(edit, runs, now.changes), now)
        return after is not None and (after.agrees or len(after.lost) < len(now.lost))

    def _runs(self, edit: Edit, number: int, now: Comparison) -> list[int]:
        """Return all runs of a line if one run may not show the edit; otherwise []. The edit leaves out a write into
        memory. Or it leaves out a segment, and the port computes only the segment's start. Or the answer and the edited
        result both change slightly."""
        step, comparer = self.program.steps[number], self.comparer
        runs = [each for each in self.program.lines[step.line] if each not in now.changes]
        if step.aliases and edit.kind == "left out":
            return runs
        if len({self.program.steps[each].site for each in runs}) < 2:
            return []
        if edit.kind == "number" and comparer.is_slight(now):
            made = _first(self._result(edit, number, now))
            return runs if made is not None and comparer.is_slightly_changed(step.output, made, now) else []
        start = comparer.at(number).behind(*edit.behind) if edit.kind == "left out" else ()
        return runs if start and now.have.get(start[-1]) and not now.have.get(step.output) else []

    def _result(self, edit: Edit, number: int, now: Comparison) -> Any:
        try:
            work.count(now.values[self.program.steps[number].output].numel())
            change = edit.make(self.comparer.at(number, now.changes))
            return None if change is None else change(now.values)
        except Exception:  # noqa: BLE001 - an edit may pass invalid arguments to an operation
            return None

    def _of_order(self, now: Comparison, port: Sequence[int]) -> Explanation | None:
        """Find an edit for the first step whose result has the right elements in a wrong order. The matching of values
        ignores this order."""
        given = {each for index in port for each in self.port.operations[index].inputs}
        if all(self._in_another_order(now, operation) is None for operation in given):
            return None
        orders = ((each, self._in_another_order(now, each)) for each in sorted(now.matched))
        operation, number = next((each for each in orders if each[1] is not None), (0, None))
        if number is None or number in now.changes:
            return None
        for edit in self._edits(number, (*SIMPLE, *LATER), Context(self.numbers)):
            result = self._result(edit, number, now)
            made = _first(result)
            theirs, output = self.port.operations[operation].value, self.program.steps[number].output
            if made is not None and agreeing(made, theirs, now.shares.get(output, 0.0)):
                wider = tuple(dataclasses.replace(each, operation=operation) for each in edit.wider)
                told = dataclasses.replace(edit, operation=operation, wider=wider)
                found = min(self._explaining(told, number, now, port), key=lambda each: each.key, default=None)
                if found is not None:
                    return found
        return None

    def _in_another_order(self, now: Comparison, operation: int) -> int | None:
        """Return the step whose result has the same shape and elements as the operation's result, but in another
        order."""
        theirs: np.ndarray = self.port.operations[operation].value
        alike = [i for i in now.matched.get(operation, ()) if tuple(now.values[i].shape) == theirs.shape]
        is_same = any(agreeing(now.values[i], theirs, now.shares.get(i, 0.0)) for i in alike)
        return None if is_same or not alike else self.program.maker.get(alike[0])


def _first(result: Any) -> Any:
    if isinstance(result, tuple | list):
        return result[0] if result else None
    return result
