"""Group a report's divergences by line and cause into findings. State findings and verdicts as sentences."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transparity.taps import in_every_layer, in_layer
from transparity.text import listed
from transparity_conformance.report.audit import CAUSES
from transparity_conformance.report.check.lines import PortLine, lines_of
from transparity_conformance.report.comparison import SHARE, share
from transparity_conformance.report.formatting import count, format_share, ranges, some
from transparity_conformance.report.report import (
    DIVERGES,
    EARLIER,
    OR,
    Cause,
    ClaimResult,
    Divergence,
    Impact,
    Measured,
    Report,
    largest_impact,
)

PRACTICALLY_ALL = 0.99
"""A difference counts as explained if its causes account for this share."""

ROUNDED = 2.0**-23
"""The spacing of float32 numbers near 1. A float32 port cannot cause a difference below ROUNDED²; the checker's own
arithmetic causes smaller differences, for example in a fused operation."""

MOST_PLACES = 4
_MOST_SPANS = 5


@dataclass(frozen=True)
class Finding:
    """The divergences that share a line of the port and, if known, a cause."""

    faults: tuple[Divergence, ...]

    @property
    def worst(self) -> Divergence:
        return max(self.faults, key=SHARE)

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The causes of the worst divergence, with the activations of all divergences that have the same cause."""
        every = [cause for fault in self.faults for cause in fault.causes]
        return tuple(
            _in_common(cause, [each for each in every if _is_same(cause, each)]) for cause in self.worst.causes
        )

    def as_dict(self, faults: Sequence[Divergence]) -> dict[str, Any]:
        """Return JSON values. `faults` contains the indices of this finding's divergences in the report's `faults`."""
        return {
            "causes": [{"mistake": each.mistake, "says": each.says, "at": each.at} for each in self.placed],
            "places": self.places,
            "lines": self.wrong_lines,
            "departs_from": self.departs_from,
            "remaining_error": self.left,
            "faults": [number for number, fault in enumerate(faults) if any(fault is each for each in self.faults)],
        }

    @property
    def placed(self) -> list[Cause]:
        """The causes as every view shows them: `at` names the activations, unless `says` already contains them."""
        return [_placed(cause, self.placed_at) for cause in self.causes]

    @property
    def is_misshapen(self) -> bool:
        return self.worst.is_misshapen and not self.causes

    @property
    def explained(self) -> float:
        return min((fault.causes[-1].explained if fault.causes else 0.0) for fault in self.faults)

    @property
    def left(self) -> float | None:
        """The difference that remains with all causes; None if the reference cannot imitate a cause, such as
        dropout."""
        # A cause's residual is computed with this cause and all previous causes in the reference.
        left = max((fault.causes[-1].residual for fault in self.faults if fault.causes), default=0.0)
        return None if self.explained <= 0 or (left == 0 and self.explained == 1) else left

    @property
    def impact(self) -> Impact | None:
        return largest_impact(fault.impact for fault in self.faults)

    @property
    def profile(self) -> dict[str, list[float]]:
        return {axis: list(errors) for axis, errors in self.worst.profile.items() if len(errors) > 1}

    @property
    def spread(self) -> list[str]:
        return spread(self.profile, self.worst.budget)

    @property
    def lines(self) -> tuple[PortLine, ...]:
        """The port's lines that compute the first wrong values."""
        return lines_of(*(fault.source for fault in self.faults))

    @property
    def wrong_lines(self) -> tuple[PortLine, ...]:
        """The lines of the causes if every cause has a line, otherwise `lines`."""
        sources = [cause.source for cause in self.causes]
        return lines_of(*sources) if sources and all(sources) else self.lines

    @property
    def departs_from(self) -> tuple[PortLine, ...]:
        """With `--against`, the corresponding lines of the other implementation."""
        return lines_of(*(fault.reference_source for fault in self.faults))

    @property
    def places(self) -> list[str]:
        return places(fault.where for fault in self.faults)

    @property
    def placed_at(self) -> str:
        return some(self.places, MOST_PLACES)

    @property
    def unexplained(self) -> str:
        if not math.isfinite(self.worst.error):
            if self.worst.where.startswith(("generate", "beam_search")):
                return "has wrong tokens (see the notes)"
            return "its shape is wrong (see the notes)" if self.worst.is_misshapen else "has values that are not finite"
        where = "; ".join(self.spread)
        return f"wrong by {format_share(self.worst.share)} its tolerance" + (f" in {where}" if where else "")


def _placed(cause: Cause, places: str) -> Cause:
    if not cause.at:
        return dataclasses.replace(cause, at=places)
    says, is_placed, more = cause.says.rpartition(f", at {cause.at}")
    if is_placed:
        return dataclasses.replace(cause, says=says, at=cause.at + more)
    return dataclasses.replace(cause, at="") if ", at " in cause.says else cause


def _is_same(cause: Cause, other: Cause) -> bool:
    return (cause.mistake, _fault_in(cause)) == (other.mistake, _fault_in(other))


def _fault_in(cause: Cause) -> str:
    """Return `cause.says` up to the names of activations or the alternatives."""
    return cause.says.partition(OR)[0].partition(", at ")[0]


def _words_on_a_line(cause: Cause) -> str:
    return _fault_in(cause) if cause.value is None else ""


def _in_common(cause: Cause, same: Sequence[Cause]) -> Cause:
    """Return `cause` with the activations of all causes in `same`. Drop the alternatives if the causes have different
    alternatives."""
    says, _, others = cause.says.partition(OR)
    if any(each.says.partition(OR)[2] != others for each in same):
        cause = dataclasses.replace(cause, says=says)
    if not cause.at:
        return cause
    at = some(places(dict.fromkeys(each.at for each in same if each.at)), 2)
    return dataclasses.replace(cause, says=cause.says.replace(f", at {cause.at}", f", at {at}"), at=at)


def findings(report: Report) -> list[Finding]:
    """Return the divergences in the order of the forward pass, grouped by line and cause. Divergences without a line
    are grouped by cause, and divergences without line and cause by the activation in all layers. An exported graph may
    have a line for each layer; corresponding lines form one finding."""
    grouped: dict[Any, list[Divergence]] = {}
    for fault in report.faults:
        line = None if fault.source is None else (fault.source["file"], fault.source["line"])
        # Another sentence means another fault, except that a fitted number may differ a little between layers.
        words = _words_on_a_line if line and not report.reference else lambda cause: cause.says
        causes = [(cause.mistake, words(cause)) for cause in fault.causes]
        alone = "" if causes or line else in_every_layer(fault.where)
        grouped.setdefault((line, tuple(causes), alone), []).append(fault)
    alike: dict[Any, list[Divergence]] = {}
    for key, faults in grouped.items():
        told = ((cause, in_every_layer(fault.where)) for fault in faults for cause in fault.causes)
        kinds = frozenset((cause.mistake, cause.says, tap) for cause, tap in told)
        alike.setdefault(kinds or key, []).extend(faults)
    return [Finding(tuple(faults)) for faults in alike.values()]


def sentence(report: Report) -> str:
    """Return the verdict: causes and their activations, or the used share of the tolerance."""
    return "".join([*beginnings(report), _verdict(report)])


def beginnings(report: Report) -> list[str]:
    return [each.sentence for each in (report.ranks, report.third) if each is not None]


def _verdict(report: Report) -> str:
    if report.verdict == "inconclusive":
        return too_little(report)
    if report.verdict == "agrees":
        ignored = f" But {report.audit.faults}." if report.audit and report.audit.faults else ""
        return f"Only rounding differs: {worst_share(report)}.{ignored}"
    found = findings(report)
    if not found:
        return unlocated(report)
    if report.audit and fails_only_the_audit(report):
        return f"With the original settings, the forward pass agrees, but {report.audit.faults}."
    parts = [_finding_sentence(finding) for finding in found[:3]]
    if found[1:]:
        parts[0] = f"Fix this first: {parts[0]}"
    if found[3:]:
        parts.append(f"{count(len(found) - 3, 'fault')} more")
    return " ".join(filter(None, [another_model(report), ". Then: ".join(parts) + ".", remedy(report)]))


def fails_only_the_audit(report: Report) -> bool:
    found = findings(report)
    return bool(found) and all(each.causes and each.causes[0].mistake in CAUSES.values() for each in found)


def unlocated(report: Report) -> str:
    return (
        f"{report.first_divergence or 'The output'} exceeds the tolerance; the checker could not compare single steps."
    )


def another_model(report: Report) -> str:
    if not report.other_fields:
        return ""
    fields = listed([f"{name} {port} (not {given})" for name, (given, port) in report.other_fields.items()])
    named = "the model of the configuration" if report.preset == "config" else report.preset
    return f"The port is not {named}: it has {fields}; `transparity fit` finds the whole configuration of a model."


def remedy(report: Report) -> str:
    """If the causes explain all errors, return `With this fixed, the rest agrees (remaining error 9e-07).`"""
    found = findings(report)
    if not found or any(finding.explained < PRACTICALLY_ALL for finding in found):
        return ""
    left = max((finding.left for finding in found if finding.left is not None), default=0.0)
    is_measured = left > ROUNDED**2 or (left and report.dtype == "float64")
    remains = f" (remaining error {left:.1g})" if is_measured else ""
    done, rest = ("changed", "both agree") if report.reference else ("fixed", "the rest agrees")
    if any(because in reason for reason in report.not_compared for because in (DIVERGES, EARLIER)):
        rest = "both forward passes agree" if report.reference else "the forward pass agrees"
    return f"With {'these' if found[1:] else 'this'} {done}, {rest}{remains}."


def located(report: Report) -> str:
    """Return `differs at decoder.layers.0.output, my.py:7`."""
    found = findings(report)[0]
    return f"differs at {found.faults[0].where}" + "".join(f", {line.place}" for line in found.lines[:1])


def too_little(report: Report) -> str:
    if not report.measured:
        return "Nothing was compared."
    reasons = report.coverage.untested or report.not_compared
    because = f": {reasons[0].rstrip('.')}" if reasons else ""
    return f"Everything that was compared agrees, but too little was compared{because}."


def _finding_sentence(finding: Finding) -> str:
    line = _quoted(finding.lines[:1]) + "".join(f"departs from {_quoted([each])}" for each in finding.departs_from[:1])
    place = some(finding.places)
    if not finding.causes:
        return f"{line}{place}: {finding.unexplained}, unexplained"
    own = all(cause.source for cause in finding.causes)
    causes = [_quoted(lines_of(cause.source)) + cause.says for cause in finding.causes]
    text = f"{'' if own else line}{place}: {'; and '.join(causes)}"
    return text if finding.explained >= PRACTICALLY_ALL or finding.explained <= 0 else f"{text}; {partly(finding)}"


def _quoted(lines: Iterable[PortLine]) -> str:
    return "".join(f"{line.place} `{line.code}`, " for line in lines)


def partly(finding: Finding) -> str:
    return f"the known causes explain {finding.explained:.0%} of the error, and the rest is unexplained"


def worst_share(report: Report) -> str:
    used, where = worst(report)
    if not where:
        return "nothing was compared"
    if used > 1:
        return f"the largest end-to-end error is {format_share(used)} its tolerance ({where})"
    return f"at most {format_share(used)} of the tolerance is used ({where})".replace("at most <", "less than ")


def worst(report: Report) -> tuple[float, str]:
    """Return the largest used share of a tolerance, and the activation or claim that uses this share. Skip claims that
    agree with a share above 1."""
    shares = [(each.share, f"{each.tap}, probe {each.probe}") for each in report.measured]
    shares += [(each.share, _place(each)) for each in report.claims if each.verdict != "agrees" or each.share <= 1]
    return max(shares, key=lambda each: each[0], default=(0.0, ""))


def _place(claim: ClaimResult) -> str:
    """Return a claim's id and worst comparison: `loss: length 5, batch 2`. Omit the id if it starts with `forward.`."""
    where = claim.where.replace(" (", ", ").removesuffix(")")
    return where if claim.id.startswith("forward.") else f"{claim.id}: {where}"


def spread(profile: Mapping[str, Any], budget: float) -> list[str]:
    """Return where an error exceeds the tolerance: `["all 8 rows", "positions 1–6 of 7", "head 2 of 3"]`."""
    return [_spread(axis, profile[axis], budget) for axis in profile if len(profile[axis]) > 1]


def _spread(axis: str, errors: Sequence[float], budget: float) -> str:
    over = [index for index, error in enumerate(errors) if share(error, budget) > 1]
    if len(over) == len(errors):
        return f"all {len(errors)} {axis}s"
    spans = ranges(over)
    if len(over) > 2 and over == list(range(over[0], len(errors), step := over[1] - over[0])) and step > 1:
        return f"every {_ordinal(step)} {axis} from {over[0]} (of {len(errors)})"
    if not over or len(spans) > _MOST_SPANS:
        return f"{len(over)} of {len(errors)} {axis}s"
    return f"{axis}{'s' * (len(over) > 1)} {', '.join(spans)} of {len(errors)}"


def _ordinal(number: int) -> str:
    last = 0 if number % 100 in (11, 12, 13) else number % 10
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"


NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def places(taps: Iterable[str]) -> list[str]:
    """Return activations or modules, several layers as one: `decoder.layers.0–1.self_attention.scores`."""
    layers: dict[str, set[int]] = {}
    for tap in taps:
        layers.setdefault(NUMBER.sub("{i}", tap, 1), set()).update(map(int, NUMBER.findall(tap)[:1]))
    return [pattern.replace("{i}", ",".join(ranges(sorted(found)))) for pattern, found in layers.items()]


def shares_by_layer(measured: Iterable[Measured]) -> dict[str, list[float]]:
    """Return the used share in each layer, for activations that several layers have."""
    patterns: dict[str, dict[int, float]] = {}
    for item in measured:
        if place := in_layer(item.tap):
            layers = patterns.setdefault(in_every_layer(item.tap), {})
            layers[place[1]] = max(layers.get(place[1], 0.0), item.segment_share)
    return {pattern: [layers[i] for i in sorted(layers)] for pattern, layers in patterns.items() if len(layers) > 1}


def ties(report: Report) -> str:
    return " ".join(dict.fromkeys(filter(None, map(_tie, report.faults))))


def _tie(fault: Divergence) -> str:
    if not fault.indistinguishable:
        return ""
    also = ", ".join(fault.indistinguishable)
    splits = f"the probe {fault.split_by} would distinguish them" if fault.split_by else "no probe distinguishes them"
    named = " with ".join(dict.fromkeys(cause.mistake for cause in fault.causes))
    return f"{also} and {named} explain the difference equally well; {splits}."
