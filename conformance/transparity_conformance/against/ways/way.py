"""One way to call two implementations, compared: a claim, or the reason why there is none."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.against.compare import Answer, Outcome, explained, judged
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.capabilities.compare import failed
from transparity_conformance.capabilities.port_calls import PortError, call_port
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.listening.operation import Operation
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.comparison import as_numbers, share
from transparity_conformance.report.report import ClaimResult
from transparity_conformance.running.process.running import ask, listen_in_full, offers
from transparity_conformance.running.ways import WAYS
from transparity_conformance.running.ways import offers as model_offers


@dataclass(frozen=True, eq=False)
class Sides:
    """The two implementations, and the time to find causes."""

    reference: Reference
    forward: Callable[..., Any]
    clock: Clock
    progress: Progress

    def answered(self, method: str, settings: tuple[int, ...], inputs: Inputs) -> np.ndarray:
        """Return the port's answer in a way; an empty `method` is its forward pass."""
        answer = call_port(as_numbers, ask(self.forward, method, *settings, **inputs))
        if answer.dtype.kind not in "fiu":
            raise PortError(f"The port returned {shown(answer)}; expected an array of numbers.")
        return np.asarray(answer, np.float64)

    def listened(self, method: str, settings: tuple[int, ...], inputs: Inputs) -> tuple[np.ndarray, list[Operation]]:
        """The same with the port's operations."""
        answer, operations = listen_in_full(self.forward, method, *settings, **inputs)
        return np.asarray(as_numbers(answer), np.float64), operations

    def compared(
        self,
        probes: Mapping[str, Inputs],
        method: str = "",
        settings: tuple[int, ...] = (),
        reference: Reference | None = None,
        shorten: Callable[[Answer], Inputs] | None = None,
    ) -> Outcome:
        """Compare both on every probe; where they differ, a probe may be shortened to find out where and why."""
        reference = reference or self.reference
        call = functools.partial(self.answered, method, settings)
        listen = functools.partial(self.listened, method, settings)
        outcome = judged(reference, call, probes, self.progress)
        if outcome.wrong and shorten is not None:
            short = judged(reference, call, {each.probe: shorten(each) for each in outcome.wrong[:1]})
            outcome = short if short.wrong else outcome
        self.clock.begin()
        return explained(reference, listen, outcome, self.clock, self.progress) if outcome.wrong else outcome


@dataclass(frozen=True)
class Way:
    """A way to call both."""

    claim: str
    """The claim of the report."""
    method: str
    """Its name among the ways to call a model."""
    settings: tuple[int, ...]
    says: str
    """What is done, in words."""

    def reference(self, reference: Reference) -> Reference:
        """Return the reference in this way."""
        from transparity_conformance.against.ways.called import InWay

        function = WAYS[self.method][0]
        return InWay(reference, lambda model, inputs: function(model, *self.settings, inputs))


def compare_way(
    way: Way, sides: Sides, probes: Mapping[str, Inputs], shorten: Callable[[Answer], Inputs] | None = None
) -> CapabilityResult:
    """Compare both in a way, which the reference takes: a claim, with a fault if they differ."""
    if not probes:
        return CapabilityResult()
    try:
        outcome = sides.compared(probes, way.method, way.settings, way.reference(sides.reference), shorten)
    except PortError as error:
        return failed(way.claim, way.says, error)
    return as_result(way, outcome)


def why_not(way: Way, sides: Sides) -> str:
    """Return the reason why a way is not compared, as a line of the report; empty if it is."""
    missing = [
        side
        for side, is_offered in (
            ("reference", model_offers(sides.reference.model, way.method)),
            ("port", offers(sides.forward, way.method)),
        )
        if not is_offered
    ]
    return f"{way.claim}: the {' and the '.join(missing)} has no such call" if missing else ""


def as_result(way: Way, outcome: Outcome) -> CapabilityResult:
    """Return the claim of a comparison and its faults."""
    worst = max(outcome.answers, key=lambda each: share(each.error, each.budget))
    verdict: Any = "diverges" if outcome.wrong else "agrees"
    where = f"{worst.probe}, {way.says}" if way.says else worst.probe
    claim = ClaimResult(way.claim, verdict, worst.error, worst.budget, where)
    faults = tuple(
        dataclasses.replace(each, where=f"{way.claim}: {each.where}", probe=f"{each.probe}, {way.says}".rstrip(", "))
        for each in outcome.faults
    )
    notes = tuple(f"{way.claim}: {note}" for note in outcome.notes)
    return CapabilityResult((claim,), faults, notes=notes)
