"""The verdict on a port: compare its activations with the reference, then locate and explain its faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from transparity_conformance.diagnosis.divergences import Progress, divergence_of, explain_all
from transparity_conformance.diagnosis.explain import Explanation, tap_kind
from transparity_conformance.diagnosis.locate import faulty_segments, wrong_at_tokens
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results, compare_segments, error_profile
from transparity_conformance.diagnosis.reach.coherent import coherent_error
from transparity_conformance.diagnosis.reach.conventions import (
    convention_notes,
    is_judged,
    near_tie_notes,
    other_convention,
)
from transparity_conformance.diagnosis.reach.coverage import UNSTEADY
from transparity_conformance.diagnosis.reach.impact import with_impact
from transparity_conformance.diagnosis.reduced_precision import declared_by, find_rounding, how_to_declare
from transparity_conformance.diagnosis.search.answer import Answer
from transparity_conformance.diagnosis.search.clock import STAGES, Clock
from transparity_conformance.diagnosis.search.fields import other_fields
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged
from transparity_conformance.report.comparison import difference, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Interrupted, Measured, Report
from transparity_conformance.storage.on_disk import chosen

__all__ = ["Actual", "Located", "Progress", "ignore_progress", "judge"]

Located = Callable[[Report], None]
"""A function to which the report on a wrong port is passed before the search for causes."""

IN_FORM = "{tap} differs from the reference, but no later activation does: the port computes an equivalent form"

Actual = Mapping[str, Mapping[str, np.ndarray]]


def ignore_progress(stage: str, done: int, total: int) -> None:
    """Do nothing."""


def ignore_report(report: Report) -> None:
    """Do nothing."""


def judge(
    name: str,
    probes: Mapping[str, Probe],
    actual: Actual,
    *,
    port: str = "",
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
    not_compared: tuple[str, ...] = (),
    repeated: ClaimResult | None = None,
    clock: Clock | None = None,
    located: Located = ignore_report,
    ranks: int = 1,
    needs_logits: bool = True,
    answer: Answer | None = None,
) -> Report:
    """Compare the activations of a port with the reference, and search for causes. If Ctrl-C ends the search, raise
    `Interrupted` with the report. `located` gets the report before the search starts. `ranks` is 1 if the port is also
    wrong on a single rank. `answer` has the port's logits, if operations were matched with taps by value."""
    with np.errstate(all="ignore"):  # a port may return NaN or infinity
        results, missing = _compare(probes, actual, dtype, logits_only, progress or ignore_progress, needs_logits)
        measured = tuple(_measured(results.values(), dtype))
        claims = (*_claims(measured), *((repeated,) if repeated else ()), *other_convention(results))
        shared = {"claims": claims, "measured": measured, "dtype": dtype, "port": port}
        report: Callable[..., Report] = partial(Report, name, not_compared=(*not_compared, *missing), **shared)  # type: ignore[arg-type]
        if not results:
            return report("inconclusive", None)
        if repeated and repeated.verdict == "diverges":
            return report("diverges", repeated.where, (_random_divergence(repeated, next(iter(results))),))
        search = _Search(progress or ignore_progress, clock or Clock(watch=progress), located, ranks, answer)
        return _verdict(report, results, measured, dtype, _is_complete(probes, results, dtype), search)


def _compare(
    probes: Mapping[str, Probe], actual: Actual, dtype: str, logits_only: bool, progress: Progress, needs_logits: bool
) -> tuple[Results, list[str]]:
    results: dict[str, ProbeResult] = {}
    missing = []
    for done, (key, probe) in enumerate(probes.items()):
        progress("comparing activations", done, len(probes))
        shown = actual.get(key, {})
        recorded = chosen(shown, [tap for tap in shown if tap == "logits" or not logits_only])
        if "logits" not in recorded:
            missing.append(f"probe {key}: the port returned no logits")
        if not recorded or (needs_logits and "logits" not in recorded):
            continue
        ends = {"logits"} & recorded.keys() or recorded.keys()
        if not all(np.isfinite(probe.oracle.budget(tap, dtype)) for tap in ends):
            missing.append(f"probe {key}: not compared, because the reference overflows in {dtype}")
        else:
            results[key] = compare_segments(probe, recorded, dtype)
    taps = dict.fromkeys(tap for result in results.values() for tap in result.order)
    absent = [tap for tap in taps if not any(tap in result.errors for result in results.values())]
    if absent:
        why = "only the logits were requested" if logits_only else "not returned by the port"
        named = ", ".join(absent[:3]) + (", …" if absent[3:] else "")
        missing.append(f"{len(absent)} of {len(taps)} activations: {why} ({named})")
    return results, missing


def _is_complete(probes: Mapping[str, Probe], results: Results, dtype: str) -> bool:
    return all(key in results and "logits" in results[key].recorded for key in probes) and is_judged(results, dtype)


@dataclass(frozen=True)
class _Search:
    progress: Progress
    clock: Clock
    located: Located
    ranks: int
    answer: Answer | None


def _verdict(
    report: Callable[..., Report],
    results: Results,
    measured: tuple[Measured, ...],
    dtype: str,
    complete: bool,
    search: _Search,
) -> Report:
    """Return the report, which can agree only if the comparison is `complete`."""
    taps = list(dict.fromkeys(tap for result in results.values() for tap in result.order))
    first = min((item.tap for item in measured if item.share > 1), key=taps.index, default=None)
    faulty, equivalent = faulty_segments(results)
    notes = _notes(results, equivalent, dtype)
    if all(item.share <= 1 for item in measured if item.tap == "logits"):
        wrong = wrong_at_tokens(results, faulty)
        if not wrong:
            notes += [f"{tap} differs from the reference only at padding, which no logit depends on" for tap in faulty]
            if hidden := _hidden_in_rounding(results, measured, dtype, notes):
                return report("diverges", "logits", with_impact(results, hidden), notes=tuple(notes))
            return report("agrees" if complete else "inconclusive", None, notes=tuple(notes))
    else:
        wrong = []
    if rounding := find_rounding(results, dtype, search.answer.alone if search.answer else None):
        where = first or "logits"
        found = _undeclared(results, measured, rounding, where, dtype, notes)
        return report("diverges", where, with_impact(results, found), notes=tuple(notes))
    if wrong and any(item.tap == "logits" for item in measured):
        notes.append("the logits agree, because on these probes the port's faults do not change the logits")
    places = wrong or faulty or ["logits"]
    unexplained = tuple(divergence_of(results, tap, Explanation()) for tap in places)
    search.located(report("diverges", first, unexplained, notes=tuple(notes)))
    divergences, remarks, others = _explained(results, places, search)
    said = {"notes": (*_sure(notes, divergences, search.answer), *remarks), "other_fields": others}
    effects = with_impact(results, divergences)
    told, first = _of_matches(effects) if search.answer else (effects, first)
    explained = report("diverges", first, told, **said)
    if search.clock.is_interrupted:
        raise Interrupted(explained)
    return explained


def _notes(results: Results, equivalent: Sequence[str], dtype: str) -> list[str]:
    shapes = [message for result in results.values() for message in result.misshapen.values()]
    forms = [IN_FORM.format(tap=tap) for tap in equivalent]
    return [*shapes, *convention_notes(results), *near_tie_notes(results, dtype), *forms]


def _of_matches(divergences: Sequence[Divergence]) -> tuple[Sequence[Divergence], str]:
    """Return the divergences with an effect, and the first wrong tap. Comparing whole runs would not find this tap,
    because the port's features may have another order."""
    told = with_effect(divergences)
    return told, next((cause.at for cause in told[0].causes if cause.at), told[0].where)


def _sure(notes: Sequence[str], divergences: Sequence[Divergence], answer: Answer | None) -> list[str]:
    is_sure = answer is None or all(each.causes for each in divergences)
    unsure = {IN_FORM.format(tap=tap) for tap in (() if answer is None or is_sure else answer.found)}
    return [note for note in notes if note not in unsure]


def with_effect(divergences: Sequence[Divergence]) -> Sequence[Divergence]:
    """Drop unexplained divergences that change no logits, because a right port may exceed a budget."""
    told = [each for each in divergences if each.causes or not each.impact or each.impact.changes_logits]
    return told or divergences


def _explained(
    results: Results, places: list[str], search: _Search
) -> tuple[Sequence[Divergence], Sequence[str], Mapping[str, tuple[object, object]]]:
    clock, others = search.clock, dict[str, tuple[object, object]]()
    is_large = any(result.probe.is_large for result in results.values())
    clock.begin(1 if is_large else STAGES)  # the search for rounding may have used all of the work
    with clock.interruptible():
        divergences = explain_all(results, places, search.progress, clock, search.ranks, search.answer)
        remarks = [clock.note] * (clock.ran_out and any(not each.causes for each in divergences))
        if not clock.is_interrupted and len(results) > 1:  # a single call does not determine the fields
            others = other_fields(results, places, divergences, clock)
    return divergences, remarks, others


def _undeclared(
    results: Results, measured: Sequence[Measured], rounding: Cause, where: str, dtype: str, notes: list[str]
) -> list[Divergence]:
    worst = max(measured, key=lambda item: item.share)
    divergence = Divergence(where, worst.error, worst.budget, (rounding,), probe=worst.probe, profile=worst.profile)
    notes.append(
        f"the port rounds more than {dtype} does; {how_to_declare(rounding)}, so that the check finds smaller "
        "differences"
    )
    return [*_hidden_in_rounding(results, measured, declared_by(rounding), notes), divergence]


def _hidden_in_rounding(
    results: Results, measured: Iterable[Measured], dtype: str | None, notes: list[str]
) -> list[Divergence]:
    coherent = coherent_error(results, dtype) if dtype in HALF else None
    if coherent is None:
        return []
    notes.append(coherent.says)
    worst = max((item for item in measured if item.tap == "logits"), key=lambda item: item.share)
    causes = (coherent.cause,) if coherent.cause else ()
    return [Divergence("logits", worst.error, worst.budget, causes, probe=worst.probe, profile=worst.profile)]


def _random_divergence(repeated: ClaimResult, probe: str) -> Divergence:
    cause = Cause("dropout-active", UNSTEADY, None, repeated.error, 0.0)
    return Divergence(repeated.where, repeated.error, repeated.budget, (cause,), probe=probe)


def _measured(results: Iterable[ProbeResult], dtype: str) -> Iterable[Measured]:
    for result in results:
        oracle = result.probe.oracle
        for tap in (tap for tap in result.order if tap in result.errors):
            expected, budget = oracle.expected[tap], oracle.budget(tap, dtype)
            recorded = result.recorded.get(tap)
            recorded = None if recorded is None else judged(result.probe, tap, recorded, expected, dtype)
            error = np.inf if recorded is None else difference(recorded, expected)
            wrong = recorded is not None and share(error, budget) > 1
            profile = error_profile(recorded, expected) if wrong else {}  # type: ignore[arg-type]
            segment = result.errors[tap], result.budgets[tap]
            yield Measured(tap, result.probe.name, error, budget, *segment, profile)


def _claims(measured: Iterable[Measured]) -> Iterable[ClaimResult]:
    worst: dict[str, Measured] = {}
    for item in measured:
        kind = tap_kind(item.tap)
        if kind not in worst or item.share > worst[kind].share:
            worst[kind] = item
    for kind, item in worst.items():
        yield ClaimResult.of(f"forward.{kind}", item.error, item.budget, f"{item.tap} ({item.probe})")
