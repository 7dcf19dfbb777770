"""The findings of a report in sentences: faults grouped by cause, the spread of an error, and the verdict."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from transparity_conformance.report.audit.result import CAUSES
from transparity_conformance.report.check.lines import PortLine, lines_of, lines_of_reference
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, format_share
from transparity_conformance.report.impact import largest
from transparity_conformance.report.report import Cause, Divergence, Measured, Report
from transparity_conformance.report.text import listed

PRACTICALLY_ALL = 0.99
"""A cause that explains less of a disagreement than this leaves something to be found."""

_MOST_SPANS = 5
_LAYER = re.compile(r"\.layers\.(\d+)")


@dataclass(frozen=True)
class Finding:
    """The divergences that one cause explains, or one divergence without a cause."""

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
    def explained(self) -> float:
        """The share of the disagreement that all its causes explain together."""
        return min((fault.causes[-1].explained if fault.causes else 0.0) for fault in self.faults)

    @property
    def residual(self) -> str:
        """The difference that remains with all the causes in the reference, and its part of the error.

        Empty where the causes explain nothing, and where nothing was computed with them: a cause that is a fact.
        """
        # each cause is put in on top of those before it
        left = max((fault.causes[-1].residual for fault in self.faults if fault.causes), default=0.0)
        if self.explained <= 0 or (left == 0 and self.explained == 1):
            return ""
        remaining = 1 - self.explained
        return f"{left:.1g}" + (f" ({remaining:.0e} of the error)" if remaining > 0 and left > 0 else "")

    @property
    def remedy(self) -> str:
        """The agreement that is reached with the causes in the reference."""
        causes = {1: "that", 2: "both"}.get(len(self.causes), "all of these")
        where = "in the other implementation" if self.departs_from else "put into the reference"
        return f"with {causes} {where}, the two agree to {self.residual}"

    @property
    def impact(self) -> str:
        """The effect on the logits, as a clause; empty if it is not known."""
        impact = largest(fault.impact for fault in self.faults)
        return impact.clause if impact else ""

    @property
    def profile(self) -> dict[str, list[float]]:
        """The worst errors along each axis longer than 1."""
        return {axis: list(errors) for axis, errors in self.worst.profile.items() if len(errors) > 1}

    @property
    def spread(self) -> list[str]:
        """The same in words."""
        return spread(self.profile, self.worst.budget)

    @property
    def lines(self) -> tuple[PortLine, ...]:
        """The lines of the port in which the first wrong numbers are made; none if they are not known."""
        return lines_of(self.faults)

    @property
    def departs_from(self) -> tuple[PortLine, ...]:
        """The lines of the other implementation, with `--against`."""
        return lines_of_reference(self.faults)

    @property
    def place(self) -> str:
        """The first of its places, and the number of the others."""
        first, others = self.faults[0].where, self.faults[1:]
        alike = all(_last(fault.where) == _last(first) for fault in others)
        return first + (f" and {len(others)} more{' like it' if alike else ''}" if others else "")


def findings(report: Report) -> list[Finding]:
    """The divergences of a report in the order of the forward pass, grouped by cause."""
    by_cause: dict[Any, list[Divergence]] = {}
    for number, fault in enumerate(report.faults):
        causes = tuple((cause.mistake, cause.says) for cause in fault.causes)
        by_cause.setdefault(causes or number, []).append(fault)
    return [Finding(tuple(faults)) for faults in by_cause.values()]


def sentence(report: Report) -> str:
    """The verdict: what is wrong and where, or how much of its budget the worst rounding uses; first, what one rank
    and many of the same code have in common, or which of three implementations stands alone."""
    first = [each.sentence for each in (report.ranks, report.third) if each is not None]
    return "".join(first) + _verdict(report)


def _verdict(report: Report) -> str:
    if report.verdict == "inconclusive":
        return _inconclusive(report)
    if report.verdict == "agrees":
        listed = f" But {report.audit.faults}." if report.audit and report.audit.faults else ""
        return f"Only rounding differs; {worst_share(report)}.{listed}"
    found = findings(report)
    if not found:
        return f"{report.first_divergence or 'The port'}: beyond the budget; no segment was looked at by itself."
    if report.audit and all(finding.causes and finding.causes[0].mistake in CAUSES.values() for finding in found):
        return f"With the settings that were written the forward pass agrees, but {report.audit.faults}."
    parts = [_finding_sentence(finding) for finding in found[:3]]
    if found[1:]:
        parts[0] = f"Mend this first: {parts[0]}"
    if found[3:]:
        parts.append(f"{count(len(found) - 3, 'fault')} more")
    is_explained = all(finding.explained >= PRACTICALLY_ALL for finding in found)
    return another_model(report) + ". Then: ".join(parts) + "." + (" Nothing else differs." if is_explained else "")


def another_model(report: Report) -> str:
    """The sentence that the port is another model than its configuration says; empty if that is not known."""
    if not report.other_fields:
        return ""
    fields = listed([f"{name} {port} (not {given})" for name, (given, port) in report.other_fields.items()])
    named = "the model of the configuration" if report.preset == "config" else report.preset
    return f"This is not {named}: it has {fields}; `transparity fit` finds the whole configuration of a model. "


def located(report: Report) -> str:
    """Where a port diverges, before causes are sought: `DIVERGES at decoder.layers.0.output, my.py:7 `x + y`.`"""
    found = findings(report)[0]
    line = "".join(f", {line.place} `{line.code}`" for line in found.lines[:1])
    size = f" ({format_share(found.share)} its budget)" if math.isfinite(found.worst.error) else ""
    return f"DIVERGES at {found.faults[0].where}{line}{size}; looking for causes …"


def _inconclusive(report: Report) -> str:
    if not report.measured:
        return "Nothing was compared."
    reasons = report.coverage.untested or report.not_compared
    because = f": {reasons[0]}" if reasons else ""
    return f"In what was compared nothing is wrong, but that is too little to say{because}."


def _finding_sentence(finding: Finding) -> str:
    line = "".join(f"{line.place} `{line.code}`, " for line in finding.lines[:1])
    line += "".join(f"departs from {line.place} `{line.code}`, " for line in finding.departs_from[:1])
    if not finding.causes:
        return f"{line}{finding.place}: {_unexplained(finding.worst)}"
    if all(cause.source for cause in finding.causes):
        text = f"{finding.place}: {'; and '.join(map(_with_its_line, finding.causes))}"
    else:
        text = f"{line}{finding.place}: {'; and '.join(cause.says for cause in finding.causes)}"
    if finding.explained >= PRACTICALLY_ALL:
        return f"{text}; {finding.remedy}" if finding.residual else text
    return text + (f"; that is {finding.explained:.0%} of it, something else remains" if finding.explained > 0 else "")


def _with_its_line(cause: Cause) -> str:
    return "".join(f"{line.place} `{line.code}`, " for line in lines_of([cause])) + cause.says


def _unexplained(fault: Divergence) -> str:
    """A divergence without a cause: its size and its spread."""
    if not math.isfinite(fault.error):
        return immeasurable(fault)
    where = "; ".join(spread(fault.profile, fault.budget))
    return f"wrong by {format_share(share(fault.error, fault.budget))} its budget, unexplained" + (
        f" (in {where})" if where else ""
    )


def immeasurable(fault: Divergence) -> str:
    """The reason for an infinite error."""
    return "of another shape (see the notes)" if fault.is_misshapen else "holds numbers that are not finite"


def worst_share(report: Report) -> str:
    """The largest share of a budget that was used, and its place."""
    worst = report.worst
    if worst is None:
        return "no share of any budget was used, for nothing was compared"
    return f"the worst share of the budget is {format_share(worst.share)} ({worst.tap}, probe {worst.probe})"


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


def shares_by_layer(measured: Iterable[Measured]) -> dict[str, list[float]]:
    """The worst segment's share in each layer, for every tap pattern that several layers have."""
    patterns: dict[str, dict[int, float]] = {}
    for item in measured:
        pattern, layer = layer_pattern(item.tap)
        if layer is not None:
            layers = patterns.setdefault(pattern, {})
            layers[layer] = max(layers.get(layer, 0.0), item.segment_share)
    return {pattern: [layers[i] for i in sorted(layers)] for pattern, layers in patterns.items() if len(layers) > 1}


def ties(report: Report) -> str:
    """The other faults that would explain a divergence, and the probe that would tell them apart."""
    return " ".join(dict.fromkeys(filter(None, map(_tie, report.faults))))


def _tie(fault: Divergence) -> str:
    if not fault.indistinguishable:
        return ""
    also = ", ".join(fault.indistinguishable)
    splits = f"the probe {fault.split_by} would tell" if fault.split_by else "no probe tells them apart"
    named = " with ".join(dict.fromkeys(cause.mistake for cause in fault.causes))
    return f"{named} is as well explained by {also}; {splits}."
