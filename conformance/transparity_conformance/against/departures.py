"""Find every departure: an operation of the port whose value the reference does not compute. If no edit explains a
departure, the reference continues with the port's value, so that later departures can be found."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.against.comparer import Comparer, Comparison, changes_at
from transparity_conformance.against.edits.edit import Edit, behind_views, common_place, expression_at, references
from transparity_conformance.against.edits.elements import IGNORES_PADDING, MASKS_NOTHING, is_marks, is_mask
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.masks import dropping_line
from transparity_conformance.against.search import EditSearch, Explanation
from transparity_conformance.listening.operation import Source
from transparity_conformance.listening.program import Change, Program, Step
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.recorded import layouts
from transparity_conformance.matching.values import HUGE
from transparity_conformance.report.check.findings import places


@dataclass(frozen=True, eq=False)
class Departure:
    """An operation of the port whose value the reference does not compute."""

    by: Departures
    operation: int
    step: Step
    """The edited step. Without an edit, the step whose result the port's value replaces, or the first unmatched
    step."""
    edit: Edit | None
    """The edit after which the reference computes the port's values; None if the search found no such edit."""
    steps: Sequence[int] = ()
    """The numbers of the edited steps, for example one step in each layer."""
    others: Sequence[Explanation] = ()
    """Other edits that explain this departure equally well."""
    right: Collection[int] = frozenset()
    """The port's operations that are right without the edit: the reference computes their values, or later values."""
    users: frozenset[int] = frozenset()
    """The port's operations that read the explained values; empty if the edit explains one of these operations, besides
    views."""
    is_computed: bool = False
    """Whether the port computes the edited value (see `Explanation.is_computed`)."""
    made: Any = None

    @property
    def port_line(self) -> Source | None:
        """Return the port's line that drops a mask or makes a wrong mask. For other edits, return the innermost line
        that runs `operation`, but no right operation of the same name."""
        operations = self.by.comparer.port.operations
        if self._hides_less and (line := dropping_line(operations[self.operation].stack)) is not None:
            return line
        if self.edit is not None and self.edit.kind == "mask" and (made := self._mask()) is not None:
            return operations[made].source
        operation, others = operations[self.operation], (operations[i] for i in self.right)
        return operation.line_apart(each for each in others if each.name == operation.name)

    @property
    def _hides_less(self) -> bool:
        """Return whether the edit leaves out a mask or the padding in a mask."""
        if self.edit is None or not any(is_mask(self.by.comparer.program.values[i]) for i in self.step.inputs):
            return False
        return self.edit.kind == "left out" or self.edit.says in (MASKS_NOTHING, IGNORES_PADDING)

    def _mask(self) -> int | None:
        """Return the port's operation that makes a mask; None if this mask equals the reference's mask, possibly
        inverted."""
        operations, values = self.by.comparer.port.operations, self.by.comparer.program.values
        given = operations[self.operation].inputs
        made = next((each for each in given if is_marks(operations[each].value)), None)
        if made is None:
            return None
        theirs = operations[made].value == operations[made].value.max()
        for _, item in references(self.step):
            if is_mask(values[item.index]):
                ours = values[item.index].numpy()
                ours = ours if ours.dtype == bool else ours > EXACT_MASK_BELOW
                with contextlib.suppress(ValueError):  # the masks have other shapes
                    one, other = np.broadcast_arrays(ours, theirs)
                    if (one == other).all() or (one != other).all():
                        return None
        while len(before := operations[made].inputs) == 1 and is_marks(operations[before[0]].value, count=2):
            made = before[0]
        return made

    @property
    def reference_line(self) -> Source | None:
        """Return the innermost line that runs all replaced steps and, if possible, no unedited step."""
        comparer, step, edit = self.by.comparer, self.step, self.edit
        program = comparer.program
        steps = [step] if edit is None else edit.steps(comparer.at(step.number))
        first, edited = steps[0], set(self.steps)
        shared = [place for place in first.places if all(place in each.places for each in steps)]
        alike = [n for n in program.lines[step.line] if n in comparer.relevant and n not in edited]
        for place in shared:
            if edit is None or not any(place in program.steps[number].places for number in alike):
                return first.stack[first.places.index(place)]
        return first.source

    @property
    def where(self) -> str:
        steps = self.by.comparer.program.steps
        modules = places(dict.fromkeys(steps[number].module for number in sorted(self.steps)))
        return modules[0] if len(modules) == 1 and modules[0] else self.step.module or "answer"

    @property
    def only_in(self) -> list[str]:
        program, relevant = self.by.comparer.program, self.by.comparer.relevant
        if self.edit is not None and self.edit.is_everywhere:
            return []
        edited = {program.steps[number].module for number in self.steps}
        others = {program.steps[number].module for number in program.lines[self.step.line] if number in relevant}
        return places(sorted(edited)) if edited < others else []

    @property
    def likewise(self) -> list[str]:
        """Return the expressions of the other edited steps in the same module, because the edit's description names
        only one step."""
        program = self.by.comparer.program
        if self.edit is None or self.edit.is_everywhere or not self.steps:
            return []
        first, *rest = (program.steps[number] for number in self.steps)
        parted = (
            next(((a, b) for a, b in zip(each.places, first.places, strict=False) if a != b), None)
            for each in rest
            if each.module == first.module
        )
        said = {expression_at(b): expression_at(a) for a, b in filter(None, parted)}
        return [f"`{other}`" for own, other in said.items() if own != other]

    def steps_in(self, program: Program) -> Sequence[int]:
        """Return the same steps in the program of another call. Two steps are the same if both are the nth run of one
        instruction in one module. If all runs are edited, return all runs: a loop may run more often in another
        call."""
        own, found = self.by.comparer.program, list[int]()
        if own is program:
            return self.steps
        for key in dict.fromkeys((own.steps[number].site, own.steps[number].module) for number in self.steps):
            before, after = (_runs(each, *key) for each in (own, program))
            edited = [place for place, number in enumerate(before) if number in self.steps]
            is_whole = {*before} & {*self.by.comparer.relevant} <= {*self.steps}
            found += after if is_whole else [after[place] for place in edited if place < len(after)]
        return sorted(found)


def _runs(program: Program, site: Hashable, module: str) -> list[int]:
    return [number for number in program.places.get(site, ()) if program.steps[number].module == module]


class Departures:
    """Finds the departures in one call, in the order of computation."""

    def __init__(
        self, comparer: Comparer, search: EditSearch, has_others: bool = False, layer_types: Sequence[str] = ()
    ) -> None:
        self.comparer, self.search, self.has_others, self.layer_types = comparer, search, has_others, layer_types
        """`has_others`: whether the reference has another implementation of its experts."""

    def found(self, before: Sequence[Departure] = ()) -> tuple[list[Departure], Comparison]:
        """Return the departures and the final comparison. If this call refutes the edits of `before`, return no
        departures."""
        found: list[Departure] = []
        now: Comparison = self.comparer.compared({})
        if before:
            changed = self.comparer.tried(self.changes_of(before), now)
            is_complete = all(each.edit for each in before)
            if changed is None or (is_complete and any(self._is_refuted(each, changed) for each in before)):
                return found, now
            now = self.comparer.measured(changed)
        while not now.agrees:
            port, steps = self.comparer.fronts(now)
            if not port and not steps:
                break
            lines = {self.comparer.program.steps[number].places[:1] for number in steps}
            # If no edit explains a line in one layer, do not search for edits of this line in other layers.
            is_known = any(each.edit is None and each.step.places[:1] in lines for each in [*before, *found])
            explanations = [] if is_known else self.search.explanations(now, port, steps)
            if explanations:
                found.append(self._explained(explanations, now, port))
                now = explanations[0].after
                continue
            if self.search.failed and self.has_others:
                break
            departure, after = self._continued(now, port, steps)
            found.append(departure)
            if after is None:
                break
            now = after
        fewest = self._fewest(found, now) if now.agrees and not before else found
        return self._without_coincidences(fewest), now

    def _is_refuted(self, departure: Departure, now: Comparison) -> bool:
        """Return whether this call computes the inputs of the edited steps, but not the edited value."""
        program = self.comparer.program
        steps = [program.steps[number] for number in departure.steps_in(program)]
        are_known = any(all(now.have.get(i) for i in step.inputs if i in program.maker) for step in steps)
        is_made = any(now.have.get(index) for step in steps for index in step.outputs)
        return departure.is_computed and are_known and not is_made

    def _without_coincidences(self, found: list[Departure]) -> list[Departure]:
        """Remove edits that explain no operation which uses the edited value, and edits that read only values copied
        from the port."""
        program = self.comparer.program
        made = {index for each in found if each.edit is None for n in each.steps for index in program.steps[n].outputs}
        found = [without_edit(each) if self._reads_only(made, each.steps) else each for each in found]
        unexplained = {each.operation for each in found if each.edit is None}
        users = {reader for index in unexplained for reader in self.comparer.port.readers.get(index, ())}
        return [without_edit(each) if each.users and each.users <= unexplained | users else each for each in found]

    def _reads_only(self, values: Collection[int], steps: Sequence[int]) -> bool:
        program = self.comparer.program
        inputs = {index for number in steps for index in program.steps[number].inputs} - program.given.keys()
        return bool(inputs) and all(behind_views(program, index) in values for index in inputs)

    def _explained(self, explanations: Sequence[Explanation], now: Comparison, port: Sequence[int]) -> Departure:
        first, *rest = explanations
        says = {each.edit.says: each for each in rest if each.worth == first.worth}
        others = tuple(each for words, each in says.items() if words != first.edit.says)
        operation, right = self._operation(first, now, port), self._right(now)
        users, is_computed = self._users(first, now), first.is_computed
        return Departure(self, operation, first.step, first.edit, first.steps, others, right, users, is_computed)

    def _right(self, now: Comparison) -> Collection[int]:
        return self.comparer.port.relevant - set(now.lost)

    def _users(self, found: Explanation, now: Comparison) -> frozenset[int]:
        port, matched = self.comparer.port, found.after.matched
        explained = set(now.lost) - set(found.after.lost)
        uses = [(index, reader) for index in explained for reader in port.readers.get(index, ())]
        for index, reader in uses:
            is_view = bool(set(matched.get(index, ())) & set(matched.get(reader, ())))
            if reader in explained and not is_view:
                return frozenset()
        return frozenset(reader for _, reader in uses) - explained

    def _operation(self, found: Explanation, now: Comparison, port: Sequence[int]) -> int:
        comparer, after = self.comparer, found.after
        if found.edit.operation >= 0:
            return found.edit.operation
        explained = set(now.lost) - set(after.lost)
        shown = [index for index in port if index in explained] or [*sorted(explained), *port, -1][:1]
        first = next((index for index in shown if index in after.matched), shown[0])
        new = (index for index in sorted(after.matched.keys() - now.matched.keys()) if index < first)
        first = next((index for index in new if comparer.port.leads_to(index, first)), first)
        if first not in after.matched:
            names = {comparer.program.steps[number].name for number in comparer.missing(now)}
            operations, readers = comparer.port.operations, comparer.port.readers
            later = ancestors([first], lambda each: readers.get(each, ()))
            given = sorted(later & explained & after.matched.keys())[:1]
            before = ancestors(given, lambda each: operations[each].inputs) if given else explained
            unlike = sorted(each for each in explained & before if operations[each].name not in names)
            is_content = found.step.output in comparer.flow.passes
            of_content = (index for index in unlike if is_content and self._reads_content(index, now))
            return next(of_content, next(iter(unlike), first % len(operations)))
        values = found.after.values
        made, taken = values[found.step.output], [values[index] for index in found.step.inputs]
        if found.edit.kind != "left out" and not any(made.dtype == each.dtype and made.equal(each) for each in taken):
            return first
        # If a function leaves out its last step, it returns this step's input. Report the operation that computes the
        # input.
        left_out = common_place(found.edit.steps(comparer.at(found.step.number)))
        behind = comparer.codes(after, first)
        givers = (index for index in comparer.port.operations[first].inputs if index in now.matched)
        in_function = (index for index in givers if left_out and left_out[0] in comparer.codes(now, index) - behind)
        return next(in_function, first)

    def _reads_content(self, operation: int, now: Comparison) -> bool:
        """Return whether an operation reads a value that depends on the main input, unlike masks and tables."""
        given = self.comparer.port.operations[operation].inputs
        return any(value in self.comparer.flow.passes for each in given for value in now.matched.get(each, ()))

    def _fewest(self, found: list[Departure], now: Comparison) -> list[Departure]:
        """Drop each unnecessary departure: the answer follows from the other edits, from alternatives to these edits,
        or from these edits in layers of one type."""
        for one in [each for each in found if each.edit is not None]:
            rest = [each for each in found if each is not one]
            for tried in itertools.chain([rest] if rest else [], with_other_edits(rest), self.in_one_type(rest)):
                after = self.comparer.tried(self.changes_of(tried), now)
                if after is None or not after.agrees or after.lost:
                    continue
                # An edited run does not compute the values inside edited segments. No other value may become unmatched.
                edits = [
                    (each.edit, number) for each in tried if each.edit and each.edit.behind for number in each.steps
                ]
                steps = (edit.all_steps(self.comparer.at(number)) for edit, number in edits)
                hidden = {index for replaced in steps for step in replaced for index in step.outputs}
                unmatched = now.matched.keys() - after.matched.keys()
                if all(hidden.intersection(now.matched[operation]) for operation in unmatched):
                    return self._fewest(tried, after)
        return found

    def in_one_type(self, found: Sequence[Departure]) -> Iterator[list[Departure]]:
        """Yield the departures in the layers of each type, such as `sliding_attention`."""
        for kind in dict.fromkeys(self.layer_types):
            steps = [[number for number in each.steps if self._layer_type(number) == kind] for each in found]
            if all(steps) and steps != [each.steps for each in found]:
                yield [dataclasses.replace(each, steps=some) for each, some in zip(found, steps, strict=True)]

    def _layer_type(self, number: int) -> str:
        layer = next((int(part) for part in self.comparer.program.steps[number].module.split(".") if part.isdigit()), 0)
        return self.layer_types[layer] if layer < len(self.layer_types) else ""

    def changes_of(self, found: Sequence[Departure]) -> dict[int, Change]:
        return changes_of(found, self.comparer.program, self.comparer.flow, self)

    def _continued(
        self, now: Comparison, port: Sequence[int], steps: Sequence[int]
    ) -> tuple[Departure, Comparison | None]:
        """Replace a step's result by a similar value of the port. Return None as the comparison if no replacement
        leaves fewer operations unmatched."""
        program = self.comparer.program
        fronts = port or now.lost[:1]
        # If the port lacks the step, use the port's value of the step's input. If the port has additional steps, use a
        # later value.
        given = [each for index in fronts for each in self.comparer.port.operations[index].inputs]
        nearest = sorted(self._layouts([*fronts, *given], steps, now), key=lambda each: -each[0])
        for _, tensor, operation, number in itertools.chain(nearest, self._layouts(now.lost, steps, now)):
            after = self.comparer.tried({**now.changes, number: _constant(tensor)}, now)
            if after is not None and len(after.lost) < len(now.lost):
                first = next((each for each in fronts if self.comparer.port.leads_to(each, operation)), fronts[0])
                right = self._right(now)
                return Departure(self, first, program.steps[number], None, [number], (), right, made=tensor), after
        step = program.steps[steps[0] if steps else max(self.comparer.relevant)]
        operation = port[0] if port else len(self.comparer.port.operations) - 1
        return Departure(self, operation, step, None, [], (), self._right(now)), None

    def _layouts(
        self, operations: Sequence[int], steps: Sequence[int], now: Comparison
    ) -> Iterator[tuple[float, Any, int, int]]:
        near = [number for step in steps for number in self._run_by_its_line(step) if number not in now.changes]
        for operation, number in itertools.product(dict.fromkeys(operations), near):
            if (found := self._in_layout(operation, number, now)) is not None:
                yield *found, operation, number

    def _run_by_its_line(self, number: int) -> list[int]:
        program, line = self.comparer.program, self.comparer.program.steps[number].places[:1]

        def readers(step: int) -> Iterator[int]:
            return (each for each in program.readers_of(step) if program.steps[each].places[:1] == line)

        return sorted(ancestors([number], readers))

    def _in_layout(self, operation: int, number: int, now: Comparison) -> tuple[float, Any] | None:
        import torch

        ours = now.values.get(self.comparer.program.steps[number].output)
        theirs = self.comparer.port.operations[operation].value
        if ours is None or not ours.is_floating_point() or sum(size > 1 for size in ours.shape) > MOST_AXES:
            return None

        def cosine(way: np.ndarray) -> float:
            a, b = (np.clip(each.ravel(), -HUGE, HUGE) for each in (ours.numpy(), way))
            norm = float(np.linalg.norm(a) * np.linalg.norm(b))
            return float(a @ b) / norm if norm else 0.0

        shape = tuple(size for size in ours.shape if size > 1)
        ways = [layout.to_ours(theirs) for layout in layouts(shape, theirs.shape, 1)]
        if not ways:
            return None
        turned = max(ways, key=cosine)
        return cosine(turned), torch.from_numpy(turned.copy()).reshape(ours.shape)


MOST_AXES = 5
"""The largest number of axes (of size > 1) for which the checker tries all orders of the axes."""


def changes_of(
    found: Sequence[Departure], program: Program, flow: DataFlow, by: Departures | None = None
) -> dict[int, Change]:
    """Return the changes of all departures. If a departure inserts a value of the port, change only the call that
    computed this value (`by`)."""
    changes: dict[int, Change] = {}
    for each in found:
        if each.edit is not None:
            changes |= changes_at(each.edit, each.steps_in(program), program, flow.within({**changes}))
        elif each.made is not None and each.by is by:
            changes |= dict.fromkeys(each.steps, _constant(each.made))
    return changes


def with_other_edits(found: Sequence[Departure]) -> Iterator[list[Departure]]:
    for place, each in enumerate(found):
        for number, other in enumerate(each.others, 1):
            tried = dataclasses.replace(each, edit=other.edit, step=other.step, steps=other.steps)
            tried = dataclasses.replace(tried, others=each.others[number:], is_computed=other.is_computed)
            yield [*found[:place], tried, *found[place + 1 :]]


def without_edit(departure: Departure) -> Departure:
    return dataclasses.replace(departure, edit=None, others=())


def _constant(tensor: Any) -> Change:
    return lambda _: tensor
