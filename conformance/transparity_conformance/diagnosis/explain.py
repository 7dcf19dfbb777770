"""Find causes: single faults, then faults with a fitted number, then combinations that make the reference agree."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.search.fitting import made_at
from transparity_conformance.diagnosis.search.search import Search, screen_of
from transparity_conformance.diagnosis.segment import Combination, Segment, rms, where_it_acts
from transparity_conformance.diagnosis.thresholds import DEEPEST
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.check.findings import places
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.formatting import some
from transparity_conformance.report.report import OR, Cause


@dataclass(frozen=True)
class Explanation:
    causes: tuple[Cause, ...] = ()
    chosen: Combination = ()
    indistinguishable: tuple[str, ...] = ()
    split_by: str | None = None
    """The name of a probe on which the causes and a fault in `indistinguishable` give different results."""
    remains: bool = False
    """Whether the causes leave a difference on some probes."""


def explain(
    segment: Segment,
    sites: list[str],
    known: Combination,
    others: Mapping[str, Probe],
    earlier: Mapping[str, Explanation],
    clock: Clock,
    deepest: int = DEEPEST,
) -> Explanation:
    """Find at most `deepest` faults at the taps `sites`, in addition to `known`, that explain `segment`. Try the faults
    of `earlier` segments first. If several causes fit, look in `others` for a probe that distinguishes them."""
    search = Search(segment, sites, known, clock)
    before = rms(segment.left(search.screen, known))
    if (same := _same_as_earlier(segment, known, before, search.screen, earlier)) is not None:
        return same
    likely = [combination for combination, _ in _made_before(segment, search.screen, earlier)]
    alike = [each for tap, each in earlier.items() if tap_kind(tap) == tap_kind(segment.tap)]
    in_vain = sum(not each.causes for each in alike) > 1  # two searches for segments of this kind failed
    deepest = 1 if in_vain else deepest
    found, remains = list[Combination](), False
    with contextlib.suppress(OutOfTime):
        found, remains = search.run(likely, deepest)
        found = found or search.partial()
    if not found:
        return Explanation()
    found = _uncontradicted_first(segment, known, search.screen, found)
    return explained_by(segment, known, found, others, remains=remains)


def explained_by(
    segment: Segment,
    known: Combination,
    found: Sequence[Combination],
    others: Mapping[str, Probe],
    *,
    remains: bool = False,
) -> Explanation:
    """Return an explanation with the first combination in `found`; all combinations fit equally well."""
    chosen, *rest = [where_it_acts(segment, known, each) for each in found]
    screen = screen_of(segment, known)
    causes = _causes(segment, known, chosen, rms(segment.left(screen, known)), screen, is_complete=not remains)
    causes = (*causes[:-1], _with_others(causes[-1], chosen, rest))
    rivals = _rivals(chosen, rest)
    exact = [name for each in chosen for name in each.fault.equivalents]
    ids = tuple(dict.fromkeys([*exact, *(name for new in rivals for name in new)]))
    splits = (_split_by(segment, known, chosen, rival, others) for rival in rivals.values())
    return Explanation(causes, chosen, ids, next((name for name in splits if name), None), remains=remains)


def _rivals(chosen: Combination, rest: Sequence[Combination]) -> dict[tuple[str, ...], Combination]:
    own, rivals = {each.fault.id for each in chosen}, dict[tuple[str, ...], Combination]()
    for rival in rest:
        new = tuple(dict.fromkeys(each.fault.id for each in rival if each.fault.id not in own))
        if new and len(rival) == len(chosen):
            rivals.setdefault(new, rival)
    return rivals


def _uncontradicted_first(
    segment: Segment, known: Combination, screen: Probe, found: list[Combination]
) -> list[Combination]:
    """Drop combinations before the first combination that makes no right segment wrong, if any."""
    for index, combination in enumerate(found):
        if not segment.is_contradicted(screen, (*known, *combination)):
            return [*found[index:]]
    return found


def _same_as_earlier(
    segment: Segment, known: Combination, before: float, screen: Probe, earlier: Mapping[str, Explanation]
) -> Explanation | None:
    for chosen, each in _made_before(segment, screen, earlier):
        if segment.share(screen, (*known, *chosen)) <= 1 and segment.vanishes((*known, *chosen)):
            *others, last = _causes(segment, known, chosen, before, screen)
            if each.chosen[-1].fault.description == chosen[-1].fault.description:
                last = dataclasses.replace(last, says=each.causes[-1].says)
            return Explanation((*others, last), chosen, each.indistinguishable, each.split_by)
    return None


def _made_before(
    segment: Segment, screen: Probe, earlier: Mapping[str, Explanation]
) -> list[tuple[Combination, Explanation]]:
    made: list[tuple[Combination, Explanation]] = []
    for tap, each in earlier.items():
        if not each.chosen or tap_kind(tap) != tap_kind(segment.tap) or any(one.sites != (tap,) for one in each.chosen):
            continue
        faults = [made_at(screen.config, one.fault, segment.tap, segment.ranks) for one in each.chosen]
        if None not in faults:
            made.append((tuple(Hypothesis(fault, (segment.tap,)) for fault in faults if fault is not None), each))
    return made


def tap_kind(tap: str) -> str:
    last = tap.rpartition(".")[2]
    if last in ("query", "key", "value"):
        return "query_key_value"
    if last.endswith("_norm"):
        return "norms"
    if "feed_forward." in tap and not last.startswith("router"):
        return "feed_forward"
    if tap.endswith("attention.output"):
        return "attention_output"
    if last == "output":
        return f"{tap.split('.')[0]}_layers" if ".layers." in tap else "stacks"
    return last


def _causes(
    segment: Segment, known: Combination, chosen: Combination, before: float, screen: Probe, *, is_complete: bool = True
) -> tuple[Cause, ...]:
    *others, last = (_cause(segment, known, chosen, index, before, screen) for index in range(len(chosen)))
    return (*others, dataclasses.replace(last, explained=1.0) if is_complete else last)


def _cause(
    segment: Segment, known: Combination, chosen: Combination, index: int, before: float, screen: Probe
) -> Cause:
    fault, sites = chosen[index].fault, chosen[index].sites
    applied = (*known, *chosen[: index + 1])
    residual = segment.largest(segment.probes[0], applied)
    gone = 1 - rms(segment.left(screen, applied)) / before if before else 1.0
    if segment.tap in sites:
        return Cause(fault.id, fault.description, fault.value, residual, max(0.0, gone))
    where = f"at {some(places(sites), 2)}" if sites else "in the whole model"
    at = sites[0] if sites else _begins(applied, screen)
    return Cause(fault.id, f"{fault.description}, {where}", fault.value, residual, max(0.0, gone), at)


def _begins(applied: Combination, screen: Probe) -> str:
    """Return the first tap that the last fault in `applied` changes or removes."""
    right, wrong = walk(screen, {}, applied[:-1]), walk(screen, {}, applied)
    changed = (tap for tap in right if tap not in wrong or not np.array_equal(right[tap], wrong[tap], equal_nan=True))
    return next(changed, "")


def _with_others(cause: Cause, chosen: Combination, rest: list[Combination]) -> Cause:
    fault, sites = chosen[-1].fault, chosen[-1].sites
    alike = [each[0].fault for each in rest if len(each) == len(chosen) == 1 and each[0].sites == sites]
    told = [_other(fault, each) for each in alike if each.id == fault.id]
    others = [other for other in dict.fromkeys(told) if other]
    if not others:
        return cause
    return dataclasses.replace(
        cause, says=f"{cause.says}{OR}{', '.join(others)}, with the same result within rounding)"
    )


def _other(fault: Fault, other: Fault) -> str:
    """Return the number or description by which `other` differs from `fault`; "" if it only says more."""
    if fault.value is not None and other.value is not None and f"{other.value:g}" != f"{fault.value:g}":
        return f"{other.value:g}"
    return "" if {*fault.description.split()} <= {*other.description.split()} else other.description


def _split_by(
    segment: Segment, known: Combination, chosen: Combination, rival: Combination, others: Mapping[str, Probe]
) -> str | None:
    """Return the first probe on which `chosen` and `rival` give different results, or on which only one of them can
    run."""
    for name, probe in others.items():
        one, other = (segment.value(probe, (*known, *each)) for each in (chosen, rival))
        if one is None or other is None:
            if one is not other:
                return name
            continue
        if gap(one, other) > segment.budget(probe):
            return name
    return None
