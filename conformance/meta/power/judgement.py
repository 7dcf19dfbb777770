"""The checker's judgement of a simulated port, and the measures of it: which share has to be right.

The port is known to be right or wrong. Whether a judgement is right is decided here, by nothing that the checker knows.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta.power.simulated import CASES, Fault, SimulatedPort, View, case_probes, shows_at
from transparity.presets import PRESETS
from transparity_conformance.checking.check import check
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.report.report import Divergence, Report


@dataclass(frozen=True)
class Judgement:
    """The checker's report on a port, or the exception that it raised."""

    port: SimulatedPort
    report: Report | None
    seconds: float
    crash: str = ""

    @property
    def verdict(self) -> str:
        return self.report.verdict if self.report else "crashed"

    @property
    def divergences(self) -> tuple[Divergence, ...]:
        return self.report.faults if self.report else ()

    def __str__(self) -> str:
        places = [
            f"{each.where}: {' and '.join(map(_cause, each.causes)) or 'unexplained'}" for each in self.divergences
        ]
        ties = dict.fromkeys(other for each in self.divergences for other in each.indistinguishable)
        tied = f" (or {', '.join(ties)})" if ties else ""
        return self.crash or f"{self.verdict}; {'; '.join(places[:4])}{' …' * (len(places) > 4)}{tied}"

    def as_dict(self) -> dict[str, Any]:
        report = self.report.as_dict() if self.report else {}
        return {"port": str(self.port), "report": report, "seconds": self.seconds, "crash": self.crash}


def _cause(cause: Any) -> str:
    return f"{cause.mistake} ({cause.says})"


def judged(port: SimulatedPort) -> Judgement:
    """Check a port. An exception is a judgement too: a wrong one."""
    began = time.perf_counter()
    try:
        with np.errstate(all="ignore"):
            is_checked = port.case in CASES or port.view == "operations"
            report = _checked(port) if is_checked else _compared(port)
        return Judgement(port, report, time.perf_counter() - began)
    except Exception:  # noqa: BLE001 - it is counted, whatever it is
        crash = traceback.format_exc().strip().splitlines()[-1]
        return Judgement(port, None, time.perf_counter() - began, crash)


def _checked(port: SimulatedPort) -> Report:
    declared = "bfloat16" if port.style.kind == "bfloat16" else "float32"
    which: dict[str, Any] = {"preset": port.case} if port.case in PRESETS else {"config": port.config}
    return check(port.build, dtype=declared, logits_only=port.view == "logits", **which)


def _compared(port: SimulatedPort) -> Report:
    probes, build = case_probes(port.case), port.build
    outputs = {name: build(probe.config, probe.parameters)(**probe.inputs) for name, probe in probes.items()}
    return judge(port.case, probes, outputs, logits_only=port.view == "logits")


def names(divergence: Divergence, fault: Fault) -> bool:
    """Return whether the cause named first is the fault, or one that nothing can tell from it."""
    found = {divergence.causes[0].mistake, *divergence.indistinguishable} if divergence.causes else set()
    return bool(found & set(fault.ids))


def is_detected(judgement: Judgement) -> bool:
    """Return whether the port diverges."""
    return judgement.verdict == "diverges"


def _place(divergence: Divergence, view: View) -> str:
    named = divergence.causes[0].at if divergence.causes else ""
    return named if view == "operations" and divergence.where == "logits" and named else divergence.where


def is_placed(judgement: Judgement) -> bool:
    """Return whether every divergence is where some fault shows, and every fault has its divergence.

    A cause that is found in the logits, of a port that was listened to, names the tap of its fault itself.
    """
    config, faults = judgement.port.config, judgement.port.faults
    where = [_place(each, judgement.port.view) for each in judgement.divergences]
    return all(any(shows_at(fault, config, tap) for fault in faults) for tap in where) and all(
        any(shows_at(fault, config, tap) for tap in where) for fault in faults
    )


def is_named(judgement: Judgement) -> bool:
    """Return whether the first divergence is named after the fault."""
    (fault,) = judgement.port.faults
    return bool(judgement.divergences) and names(judgement.divergences[0], fault)


def all_named(judgement: Judgement) -> bool:
    """Return whether every fault is named at a place of its own."""
    config = judgement.port.config
    return is_placed(judgement) and all(
        any(shows_at(fault, config, each.where) and names(each, fault) for each in judgement.divergences)
        for fault in judgement.port.faults
    )


def one_named(judgement: Judgement) -> bool:
    """Return whether one fault is named, and the others are too, or something is reported to remain."""
    faults, divergences = judgement.port.faults, judgement.divergences
    # A tie is not enough here: of several faults by logits alone, one has to be named by its own id.
    first = {each.causes[0].mistake for each in divergences if each.causes}
    right = [fault for fault in faults if first & set(fault.ids)]
    left = any(not each.causes or each.causes[0].residual > each.budget for each in divergences)
    remains = left or any("remain" in note for note in (judgement.report.notes if judgement.report else ()))
    return len(right) == len(faults) or (bool(right) and remains)


def nothing_else_named(judgement: Judgement) -> bool:
    """Return whether the port diverges, and every cause is one of its faults, or cannot be told from one."""
    made = {id for fault in judgement.port.faults for id in fault.ids}
    named = ({cause.mistake, *each.indistinguishable} for each in judgement.divergences for cause in each.causes)
    return is_detected(judgement) and all(ids & made for ids in named)


def is_unexplained(judgement: Judgement) -> bool:
    """Return whether the fault is found, and no cause is named."""
    return is_detected(judgement) and not any(each.causes for each in judgement.divergences)


def agrees(judgement: Judgement) -> bool:
    return judgement.verdict == "agrees"


@dataclass(frozen=True)
class Measure:
    """A share of right judgements that the checker has to reach."""

    title: str
    kind: str
    """The kind of the simulated ports that count."""
    view: View | None
    """None for all."""
    right: Callable[[Judgement], bool]
    target: float

    def counts(self, port: SimulatedPort) -> bool:
        return port.kind == self.kind and self.view in (None, port.view)


MEASURES = (
    Measure("detected, with taps", "fault", "taps", is_detected, 1.0),
    Measure("detected, by logits alone", "fault", "logits", is_detected, 1.0),
    Measure("detected, by operations", "fault", "operations", is_detected, 1.0),
    Measure("placed, with taps", "fault", "taps", is_placed, 0.98),
    Measure("placed, by operations", "fault", "operations", is_placed, 0.98),
    Measure("named first, with taps", "fault", "taps", is_named, 0.98),
    Measure("named first, by operations", "fault", "operations", is_named, 0.98),
    Measure("named first, by logits alone", "fault", "logits", is_named, 0.92),
    Measure("two faults: both placed and named, with taps", "pair", "taps", all_named, 0.98),
    Measure("two faults: both placed and named, by operations", "pair", "operations", all_named, 0.95),
    Measure("two faults: one named, the other reported to remain, by logits", "pair", "logits", one_named, 0.95),
    Measure("three faults: all placed and named, with taps", "triple", "taps", all_named, 0.90),
    Measure("three faults: all placed and named, by operations", "triple", "operations", all_named, 0.90),
    Measure("three faults: found, and nothing else named, by logits", "triple", "logits", nothing_else_named, 0.90),
    Measure("no false alarm", "style", None, agrees, 1.0),
    Measure("no false cause: found", "uncatalogued", None, is_detected, 1.0),
    Measure("no false cause: placed, with taps", "uncatalogued", "taps", is_placed, 1.0),
    Measure("no false cause: unexplained", "uncatalogued", None, is_unexplained, 1.0),
)


def wrong(measure: Measure, judgements: Iterable[Judgement]) -> list[Judgement]:
    """The judgements that `measure` counts and finds wrong; a crash is never right."""
    counted = (each for each in judgements if measure.counts(each.port))
    return [each for each in counted if each.crash or not measure.right(each)]


def scores(judgements: Sequence[Judgement]) -> list[dict[str, Any]]:
    """Every measure with something to count: how many, the share that is right, the target, and the failures."""
    found = []
    for measure in MEASURES:
        counted = [each for each in judgements if measure.counts(each.port)]
        if counted:
            failures = wrong(measure, judgements)
            share = 1 - len(failures) / len(counted)
            score = {"measure": measure.title, "trials": len(counted), "share": share, "target": measure.target}
            score |= {"reached": share >= measure.target, "slowest": max(each.seconds for each in counted)}
            found.append(score | {"failures": [{"trial": str(each.port), "answer": str(each)} for each in failures]})
    return found
