"""Compare the answers of the port and the reference in one kind of call (a way), such as cached steps."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.against.compare import Outcome, explained, judged
from transparity_conformance.against.probes import Answer, taken
from transparity_conformance.against.reference import Inputs, Reference, RefusedError
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError, call_port, signature_of
from transparity_conformance.capabilities.table import failed
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.diagnosis.reach.coverage import DRAWN, HISTORY, UNSTEADY
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.calls import first_source, parted
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.values import apart
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_conformance.report.parts import ThirdComparison
from transparity_conformance.report.report import CapabilityResult, Cause, ClaimResult, Divergence, not_compared
from transparity_conformance.running.inputs import is_instance
from transparity_conformance.running.process.running import ask, listen_in_full, offers
from transparity_conformance.running.ways import WAYS
from transparity_conformance.running.ways import offers as model_offers


@dataclass(frozen=True)
class Way:
    claim: str
    method: str = ""
    """The name of the call in `running.ways`; empty for the forward pass."""
    settings: tuple[int | str, ...] = ()
    """The first arguments of the call."""
    says: str = ""
    """The settings in words, for the report."""


FORWARD = Way("forward")


@dataclass(frozen=True, eq=False)
class Sides:
    """The two implementations, and the settings of their comparison."""

    reference: Reference
    make: Callable[[], Callable[..., Any]]
    budget: float | None
    """The time limit of the search in seconds; None to limit only the amount of work."""
    progress: Progress
    small: Callable[[], AbstractContextManager[Sides]] | None = None
    """A function that builds both implementations with small weights; None if the checker cannot choose the weights."""
    called: list[Answer] = field(default_factory=list)
    views: dict[Way, Reference] = field(default_factory=dict)

    def view(self, way: Way) -> Reference:
        """Return a view of the reference whose answers come from calls of `way`."""
        if way.method and way not in self.views:
            function, settings = WAYS[way.method][0], way.settings
            self.views[way] = self.reference.calling(lambda model, inputs: function(model, *settings, inputs))
        return self.views.get(way, self.reference)

    @functools.cached_property
    def forward(self) -> Callable[..., Any]:
        return self.make()

    def answered(self, way: Way, inputs: Inputs, forward: Callable[..., Any] | None = None) -> np.ndarray:
        answer = call_port(as_numbers, ask(forward or self.forward, way.method, *way.settings, **inputs))
        if answer.dtype.kind not in "fiu":
            raise PortError(f"The port returned {shown(answer)}; expected an array of numbers.")
        return np.asarray(answer, np.float64)

    def listened(
        self, way: Way, inputs: Inputs, forward: Callable[..., Any] | None = None
    ) -> tuple[np.ndarray, list[Operation]]:
        answer, operations = listen_in_full(forward or self.forward, way.method, *way.settings, **inputs)
        return np.asarray(as_numbers(answer), np.float64), operations

    def judged(self, probes: Mapping[str, Inputs], way: Way = FORWARD) -> Outcome:
        outcome = judged(self.view(way), functools.partial(self.answered, way), probes, self.progress)
        if way is FORWARD:
            self.called.extend(outcome.answers)
        return outcome

    def explained(self, outcome: Outcome, way: Way = FORWARD, part: float = 1.0) -> Outcome:
        """Find the lines and causes of wrong answers. If the port does not repeat its answer, report the first line at
        which two runs differ."""
        if not outcome.wrong:
            return outcome
        first, listen = outcome.wrong[0], functools.partial(self.listened, way)
        if (found := self._unsteady(way, first)) is None:
            budget = None if self.budget is None else part * self.budget
            return explained(self.view(way), listen, outcome, Clock(budget), self.progress)
        cause, other = found
        once, again = (listen(first.inputs, forward)[1] for forward in (self.forward, other))
        source = first_source(once, parted(once, again))
        line = None if source is None else dataclasses.asdict(source)
        fault = Divergence("answer", first.error, first.budget, (cause,), probe=first.probe, source=line)
        return dataclasses.replace(outcome, faults=[fault])

    def _unsteady(self, way: Way, first: Answer) -> tuple[Cause, Callable[..., Any]] | None:
        """Return a cause and a port with another answer, if a second call or a newly built port does not repeat the
        answer `first`."""

        def ask_port(forward: Callable[..., Any]) -> Answer:
            call = functools.partial(self.answered, way, forward=forward)
            return judged(self.view(way), call, {first.probe: first.inputs}).answers[0]

        built = self.make()
        random = Cause("dropout-active", UNSTEADY, explained=0.0), self.forward
        try:
            new, again = ask_port(built), ask_port(self.forward)
            if new.agrees:
                return random if again.agrees else (Cause("history", HISTORY, explained=0.0), built)
            if _is_near(first, new) or _is_near(new, ask_port(self.make())):
                return None
        except PortProcessError:
            raise
        except PortError:
            return None
        return (Cause("weight-drawn", DRAWN, explained=0.0), built) if _is_near(first, again) else random


def _is_near(one: Answer, other: Answer) -> bool:
    return one.actual.shape == other.actual.shape and gap(one.actual, other.actual) <= one.budget


def compare_way(
    way: Way, sides: Sides, probes: Mapping[str, Inputs], shorten: Callable[[Answer], Inputs] | None = None
) -> CapabilityResult:
    """Compare one kind of call; `shorten` shortens inputs with a wrong answer."""
    if not probes:
        return not_compared(f"{way.claim}: not compared, because no probe has suitable inputs")
    try:
        outcome = sides.judged(probes, way)
        if outcome.wrong and shorten is not None:
            worst = outcome.wrong[0]
            with contextlib.suppress(RefusedError):  # the reference may refuse a text that ends in an image
                short = sides.judged({worst.probe: shorten(worst)}, way)
                outcome = short if short.wrong else outcome
        return as_result(way, sides.explained(outcome, way))
    except PortError as error:
        return failed(way.claim, way.says, error)


def why_not(method: str, sides: Sides) -> str:
    model = sides.reference.model
    offered = {
        "reference": is_instance(model, "torch.nn", "Module") and model_offers(model, method),
        "port": offers(sides.forward, method),
    }
    missing = [side for side, is_offered in offered.items() if not is_offered]
    return f"the {' and the '.join(missing)} {'do' if missing[1:] else 'does'} not support this call" if missing else ""


def as_result(way: Way, outcome: Outcome) -> CapabilityResult:
    worst = max(outcome.answers, key=lambda each: each.share)
    verdict: Any = "diverges" if outcome.wrong else "agrees"
    where = f"{worst.probe}, {way.says}" if way.says else worst.probe
    claim = ClaimResult(way.claim, verdict, worst.error, worst.budget, where)
    faults = tuple(
        dataclasses.replace(each, where=f"{way.claim}: {each.where}", probe=f"{each.probe}, {way.says}".rstrip(", "))
        for each in outcome.faults
    )
    notes = tuple(f"{way.claim}: {note}" for note in outcome.notes)
    return CapabilityResult((claim,), faults, notes=notes)


def compare_third(
    sides: Sides, answers: Sequence[Answer], make: Callable[[], Callable[..., Any]], name: str
) -> ThirdComparison:
    third = Sides(sides.reference, make, 0.0, sides.progress)
    given, _ = taken({each.probe: each.inputs for each in answers}, signature_of(third.forward))
    found = {each.probe: each for each in third.judged(given).answers}
    port = [each for each in answers if each.probe in found]

    def are_alike(one: Answer, other: Answer) -> bool:
        kept = sides.reference.kept(one.inputs, one.actual.shape)
        return bool(apart(one.actual, other.actual, kept).max() <= one.budget + other.budget)

    return ThirdComparison(
        sides.reference.name,
        name,
        all(each.agrees for each in port),
        all(are_alike(each, found[each.probe]) for each in port),
        all(each.agrees for each in found.values()),
        len(port),
    )
