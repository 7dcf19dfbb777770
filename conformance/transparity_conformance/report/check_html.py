"""A check's answer as one HTML page: what is wrong and why, a heat map of taps × probes, and how errors are spread."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from transparity_conformance.report.comparison import share
from transparity_conformance.report.findings import (
    Finding,
    by_layer,
    findings,
    layer_pattern,
    remedied,
    sentence,
    spread,
    ties,
    worst_in_words,
)
from transparity_conformance.report.formatting import count, height, share_in_words
from transparity_conformance.report.matrix_files import heat, scientific, template
from transparity_conformance.report.report import ClaimResult, Divergence, Measured, Report

_MOST_BARS = 128
"""More positions than this are drawn as this many bars, each the largest of its neighbours."""

_AXES = ("layer", "head", "position", "row")


def as_html(reports: Sequence[Report]) -> str:
    """The page: a section for each report, the wrong ones opened."""
    return template("check.html.jinja").render(headline=headline(reports), reports=[_section(r) for r in reports])


def headline(reports: Sequence[Report]) -> dict[str, str]:
    """The verdict on all of them: the worst of theirs, and how many share it."""
    verdicts: list[str] = [report.verdict for report in reports]
    worst = next((kind for kind in ("diverges", "inconclusive", "agrees") if kind in verdicts), "inconclusive")
    if len(reports) == 1:
        return {"verdict": worst, "says": f"{reports[0].preset} {_VERBS[worst]}"}
    number = verdicts.count(worst)
    of = f"All {number}" if number == len(reports) else f"{number} of {len(reports)}"
    verb = _VERBS[worst] if number == 1 else {"diverges": "diverge", "agrees": "agree"}.get(worst, "are inconclusive")
    return {"verdict": worst, "says": f"{of} {verb}" if reports else "Nothing was checked"}


_VERBS = {"diverges": "diverges", "agrees": "agrees", "inconclusive": "is inconclusive"}


def _section(report: Report) -> dict[str, Any]:
    places = {fault.where for fault in report.faults}
    return {
        "preset": report.preset,
        "dtype": report.dtype,
        "verdict": report.verdict,
        "sentence": sentence(report),
        "first": report.first_divergence if report.first_divergence not in places else None,
        "worst": worst_in_words(report),
        "findings": [_finding(finding) for finding in findings(report)],
        "ties": ties(report),
        "probes": list(dict.fromkeys(item.probe for item in report.measured)),
        "taps": _heat_map(report),
        "profiles": list(_profiles(report)),
        "claims": [_claim(claim) for claim in report.claims],
        "lists": [("Not compared", report.not_compared), ("Notes", report.notes)],
        "compared": count(len(report.measured), "comparison"),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    worst = finding.worst
    return {
        "places": [fault.where for fault in finding.faults],
        "probe": worst.probe,
        "error": scientific(worst.error),
        "budget": scientific(worst.budget),
        "share": share_in_words(finding.share),
        "causes": finding.causes,
        "remedied": remedied(finding) if finding.explained > 0 else "",
        "spread": spread(worst.profile, worst.budget),
        "bars": [] if finding.causes else _bars_of_fault(worst),
    }


def _bars_of_fault(fault: Divergence) -> list[dict[str, Any]]:
    return [_bars(axis, fault.profile[axis], fault.budget) for axis in _AXES if len(fault.profile.get(axis, ())) > 1]


def _claim(claim: ClaimResult) -> dict[str, Any]:
    exact = claim.budget == claim.error == 0
    used = "exact" if exact else share_in_words(share(claim.error, claim.budget))
    return {"id": claim.id, "verdict": claim.verdict, "share": used, "where": claim.where}


def _heat_map(report: Report) -> list[dict[str, Any]]:
    """The rows of the heat map, in the order of the forward pass."""
    cells = {(item.tap, item.probe): item for item in report.measured}
    probes = dict.fromkeys(item.probe for item in report.measured)
    taps, before = [], ""
    for tap in dict.fromkeys(item.tap for item in report.measured):
        part = _part(tap)
        taps.append(
            {"tap": tap, "starts": part != before, "cells": [_cell(cells.get((tap, probe))) for probe in probes]}
        )
        before = part
    return taps


def _part(tap: str) -> str:
    """What neighbouring rows have in common: their layer, or their stack."""
    return tap.partition(".layers.")[0] + str(layer_pattern(tap)[1])


def _cell(item: Measured | None) -> dict[str, Any] | None:
    if item is None:
        return None
    return {
        "title": f"{item.tap}, {item.probe}",
        "segment": _shade(item.segment_error, item.segment_budget),
        "whole": _shade(item.error, item.budget),
    }


def _shade(error: float, budget: float) -> dict[str, Any]:
    used = share(error, budget)
    return {
        "says": share_in_words(used),
        "over": used > 1,
        "heat": heat(used) if used <= 1 else round(min(1.0, math.log10(used) / 6), 3),
        "title": f"{scientific(error)} of {scientific(budget)}",
    }


def _profiles(report: Report) -> Iterator[dict[str, Any]]:
    """For each kind of tap the bars that there are: layers are held to their segments, the rest is end to end."""
    layers = by_layer(report.measured)
    worst: dict[str, Measured] = {}
    for item in report.measured:
        kind = layer_pattern(item.tap)[0]
        if item.profile and (kind not in worst or item.share > worst[kind].share):
            worst[kind] = item
    for kind in dict.fromkeys(layer_pattern(item.tap)[0] for item in report.measured):
        bars: dict[str, Any] = {}
        if len(layers.get(kind, ())) > 1:
            bars["layer"] = _bars("layer", [layers[kind][i].segment_share for i in sorted(layers[kind])], 1.0)
        if kind in worst:
            profile, budget = worst[kind].profile, worst[kind].budget
            bars |= {axis: _bars(axis, profile[axis], budget) for axis in _AXES if len(profile.get(axis, ())) > 1}
        if bars:
            yield {"kind": kind, "item": worst.get(kind), "bars": [bars.get(axis) for axis in _AXES]}


def _bars(axis: str, errors: Sequence[float], budget: float) -> dict[str, Any]:
    size = math.ceil(len(errors) / _MOST_BARS)
    groups = [errors[start : start + size] for start in range(0, len(errors), size)]
    peaks = [max(group, key=lambda error: share(error, budget)) for group in groups]
    largest = max(peaks, key=lambda error: share(error, budget))
    over = share(largest, budget) > 1
    drawn = [
        {
            "height": round(100 * (height(peak, largest) if over else share(peak, budget)), 1),
            "over": share(peak, budget) > 1,
            "title": f"{axis} {index * size}{f'–{index * size + len(group) - 1}' if len(group) > 1 else ''}: "
            + (scientific(peak) if budget != 1.0 else share_in_words(peak)),
        }
        for index, (peak, group) in enumerate(zip(peaks, groups, strict=True))
    ]
    return {"axis": axis, "of": len(errors), "bars": drawn}


def write_html(reports: Sequence[Report], path: str | Path) -> None:
    """One page, complete in itself."""
    from transparity_conformance.report.check_html import as_html

    Path(path).write_text(as_html(reports), encoding="utf-8")
