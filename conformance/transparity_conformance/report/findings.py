"""What a check has found, in words: which faults are one mistake, how an error is spread, and the verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, share_in_words
from transparity_conformance.report.report import Cause, Divergence, Measured, Report

PRACTICALLY_ALL = 0.99
"""A mistake that explains less of a disagreement than this leaves something to be found."""

_MOST_SPANS = 5
_LAYER = re.compile(r"\.layers\.(\d+)")


@dataclass(frozen=True)
class Finding:
    """The faults that one mistake explains, or one fault that nothing does."""

    faults: tuple[Divergence, ...]

    @property
    def worst(self) -> Divergence:
        return max(self.faults, key=lambda fault: share(fault.error, fault.budget))

    @property
    def causes(self) -> tuple[Cause, ...]:
        return self.worst.causes

    @property
    def share(self) -> float:
        return share(self.worst.error, self.worst.budget)

    @property
    def residual(self) -> float:
        """What is left when all the causes are in the reference: each is put in on top of those before it."""
        return max(fault.causes[-1].residual for fault in self.faults)

    @property
    def explained(self) -> float:
        return min((fault.causes[-1].explained if fault.causes else 0.0) for fault in self.faults)

    @property
    def place(self) -> str:
        first, others = self.faults[0].where, self.faults[1:]
        alike = all(_last(fault.where) == _last(first) for fault in others)
        return first + (f" and {len(others)} more{' like it' if alike else ''}" if others else "")


def findings(report: Report) -> list[Finding]:
    """The faults of a report in the order of the forward pass, those of one mistake as one."""
    by_cause: dict[Any, list[Divergence]] = {}
    for number, fault in enumerate(report.faults):
        why = tuple((cause.mistake, cause.says) for cause in fault.causes)
        by_cause.setdefault(why or number, []).append(fault)
    return [Finding(tuple(faults)) for faults in by_cause.values()]


def sentence(report: Report) -> str:
    """The verdict: what is wrong and where, or how much of its budget the worst rounding uses."""
    if report.verdict == "inconclusive":
        return _inconclusive(report)
    if report.verdict == "agrees":
        return _agreement(report)
    found = findings(report)
    if not found:
        return f"{report.first_divergence or 'The port'}: beyond the budget; no segment was looked at by itself."
    open_ends = [finding for finding in found if finding.explained < PRACTICALLY_ALL]
    said = "; ".join(map(_finding_in_words, found[:3]))
    more = f"; and {count(len(found) - 3, 'fault')} more" if found[3:] else ""
    return f"{said}{more}." + ("" if open_ends else " Nothing else differs.")


def _inconclusive(report: Report) -> str:
    if not report.measured:
        return "Nothing was compared."
    because = f": {report.not_compared[0]}" if report.not_compared else ""
    return f"In what was compared nothing is wrong, but that is too little to say{because}."


def _agreement(report: Report) -> str:
    for finding in findings(report):
        return f"What differs is {finding.causes[-1].says if finding.causes else 'rounding'}, and nothing else."
    return f"What differs is rounding; {worst_in_words(report)}."


def _finding_in_words(finding: Finding) -> str:
    if not finding.causes:
        return f"{finding.place}: {unexplained(finding.worst)}"
    says = f"{finding.place}: {'; and '.join(cause.says for cause in finding.causes)}"
    if finding.explained >= PRACTICALLY_ALL:
        return f"{says}; {remedied(finding)}"
    return says + (f"; that is {finding.explained:.0%} of it, something else remains" if finding.explained > 0 else "")


def remedied(finding: Finding) -> str:
    """What becomes of the disagreement."""
    what = "that" if len(finding.causes) == 1 else "both" if len(finding.causes) == 2 else "all of these"
    return f"with {what} put into the reference, the two agree to {residual(finding)}"


def residual(finding: Finding) -> str:
    """What is left, and how much that is of what there was."""
    left = 1 - finding.explained
    of_it = f" ({left:.0e} of the error)" if left > 0 and finding.residual > 0 else ""
    return f"{finding.residual:.1g}{of_it}"


def unexplained(fault: Divergence) -> str:
    """A fault without a cause: how large it is, and how it is spread."""
    if not math.isfinite(fault.error):
        return immeasurable(fault)
    where = "; ".join(spread(fault.profile, fault.budget))
    return f"wrong by {share_in_words(share(fault.error, fault.budget))} its budget, unexplained" + (
        f" (in {where})" if where else ""
    )


def immeasurable(fault: Divergence) -> str:
    """What an infinite error is."""
    return "of another shape (see the notes)" if fault.is_misshapen else "holds numbers that are not finite"


def worst_in_words(report: Report) -> str:
    """The largest share of its budget that anything used, and what did."""
    worst = report.worst
    if worst is None:
        return "no share of any budget was used, for nothing was compared"
    return f"the worst share of the budget is {share_in_words(worst.share)} ({worst.tap}, probe {worst.probe})"


def spread(profile: Mapping[str, Any], budget: float) -> list[str]:
    """`["all 8 rows", "positions 1–6 of 7", "head 2 of 3"]`: where an error is more than rounding."""
    return [_spread(axis, profile[axis], budget) for axis in profile if len(profile[axis]) > 1]


def _spread(axis: str, errors: Sequence[float], budget: float) -> str:
    over = [index for index, error in enumerate(errors) if share(error, budget) > 1]
    if len(over) == len(errors):
        return f"all {len(errors)} {axis}s"
    spans = _spans(over)
    if not over or len(spans) > _MOST_SPANS:
        return f"{len(over)} of {len(errors)} {axis}s"
    return f"{axis}{'s' * (len(over) > 1)} {', '.join(spans)} of {len(errors)}"


def _spans(numbers: Iterable[int]) -> list[str]:
    """`1–3` of 1, 2, 3."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]


def _last(tap: str) -> str:
    return tap.rpartition(".")[2]


def layer_pattern(tap: str) -> tuple[str, int | None]:
    """`encoder.layers.{i}.output` and 3, of `encoder.layers.3.output`."""
    layer = _LAYER.search(tap)
    return _LAYER.sub(".layers.{i}", tap), int(layer[1]) if layer else None


def by_layer(measured: Iterable[Measured]) -> dict[str, dict[int, Measured]]:
    """The worst segment of each layer, for every kind of tap that layers have."""
    kinds: dict[str, dict[int, Measured]] = {}
    for item in measured:
        kind, layer = layer_pattern(item.tap)
        if layer is not None:
            layers = kinds.setdefault(kind, {})
            layers[layer] = max(layers.get(layer, item), item, key=lambda one: one.segment_share)
    return kinds


def ties(report: Report) -> str:
    """What else would explain a fault, and which probe would tell."""
    return " ".join(dict.fromkeys(filter(None, map(_tie, report.faults))))


def _tie(fault: Divergence) -> str:
    if not fault.indistinguishable:
        return ""
    also = ", ".join(fault.indistinguishable)
    splits = f"the probe {fault.split_by} would tell" if fault.split_by else "no probe tells them apart"
    return f"It is as well explained by {also}; {splits}."
