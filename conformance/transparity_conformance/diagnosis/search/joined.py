"""Join several wrong activations of a sublayer to one segment, if they have no separate causes.

Activations that were found by value may be matched wrongly, and operations in another order change several activations
at once. The joint segment starts at the sublayer's right activations. It ends at the tap that all wrong activations
feed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from transparity.limits.stored import chosen
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.undetermined import judged_gap


def scope_of(tap: str) -> str:
    """Return a tap's sublayer; empty outside sublayers."""
    parts = tap.split(".")
    return ".".join(parts[:-1]) if len(parts) > 4 else ""


def layer_of(tap: str) -> str:
    """Return a tap's layer, or the tap itself outside layers."""
    return ".".join(tap.split(".")[:3])


def joined(
    results: Results, tap: str, faulty: Sequence[str], found: Collection[str], dtype: str
) -> tuple[str, Results]:
    """Return the end of the joint segment, and the results without the sublayer's other wrong activations. The end is
    empty if a wrong activation was not found by value, or if only one activation is wrong."""
    inside = {each for each in faulty if scope_of(tap) and scope_of(each) == scope_of(tap)}
    having = {key: result for key, result in results.items() if inside & result.recorded.keys()}
    if not having or not inside <= {*found}:
        return "", {}
    wrong = set[str]().union(*(_wrong(result, scope_of(tap), dtype) for result in having.values()))
    end = _end(next(iter(having.values())), wrong, inside)
    kept = {key: _without(result, wrong - {end}) for key, result in having.items() if end in result.recorded}
    return (end, kept) if wrong - {end} else ("", {})


def _wrong(result: ProbeResult, scope: str, dtype: str) -> set[str]:
    """Return a sublayer's wrong activations, if the reference computes the sublayer only from its input."""
    inside = {tap for tap in result.recorded if scope_of(tap) == scope}
    outer = chosen(result.recorded, [tap for tap in result.recorded if tap not in inside])
    ours, within = walk(result.probe, outer), REMEASURED_WITHIN[dtype]
    errors = {tap: judged_gap(result.probe, tap, result.recorded[tap], ours[tap], dtype, outer) for tap in inside}
    return {tap for tap, error in errors.items() if error > within * result.budgets[tap]}


def _end(result: ProbeResult, wrong: Collection[str], inside: Collection[str]) -> str:
    """Return the first wrong tap that all taps `inside` a sublayer feed, or an empty string."""
    given = _without(result, wrong).recorded
    ours, common = walk(result.probe, given), {*wrong}
    for tap in {*inside} & result.recorded.keys():
        other = walk(result.probe, {**given, tap: 2 * result.recorded[tap] + 1})
        common &= {tap, *(each for each in wrong if not np.array_equal(ours[each], other[each], equal_nan=True))}
    return min(common, key=result.order.index, default="")


def _without(result: ProbeResult, wrong: Collection[str]) -> ProbeResult:
    recorded = chosen(result.recorded, [tap for tap in result.recorded if tap not in wrong])
    errors = {tap: error for tap, error in result.errors.items() if tap not in wrong}
    return dataclasses.replace(result, recorded=recorded, errors=errors)
