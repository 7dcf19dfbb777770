"""The content of a check's result as plain data, which terminal text, Markdown and HTML have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from transparity_conformance.report.check.findings import Finding, fails_only_the_audit, findings, remedy
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import Report

CAPABILITIES = {
    "loss": "loss",
    "gradients": "gradients",
    "gradients.micro_batches": "gradients from micro-batches",
    "gradients.checkpointing": "gradients with checkpointing",
    "gradients.dropout": "gradients with dropout",
    "gradients.router_aux_loss_coef": "gradients with the auxiliary loss of routers",
    "loss_and_gradients": "gradients",
    "generate": "generation",
    "beam_search": "beam search",
    "step": "cached decoding",
    "train": "training",
    "packed": "packed documents",
    "adapted": "LoRA adapters",
    "resized": "images of other sizes",
}

MARKS = {"agrees": ("✓", "green"), "diverges": ("✗", "red"), "inconclusive": ("?", "yellow")}

VERDICTS = {"agrees": "agrees with", "diverges": "differs from", "inconclusive": "may or may not agree with"}
AGAINST = VERDICTS | {"diverges": "departs from"}
"""Verbs for verdicts. With `AGAINST`, the other implementation may be wrong itself."""


NAME_AND_REASON = re.compile(r"(?P<name>(\{.*?\}(?=: | \()|[^{:]|:(?! ))+): (?P<reason>.+)", re.DOTALL)
"""`NAME: REASON`; the name may end with the JSON of a field's value."""


@dataclass(frozen=True)
class CheckView:
    report: Report
    alike: Sequence[str] = ()

    @property
    def title(self) -> str:
        """`my.py:load differs from the reference`."""
        verb = (AGAINST if self.report.reference else VERDICTS)[self.report.verdict]
        rest = self.failed_audit or f"{verb} {self.report.reference or 'the reference'}"
        return f"{self.report.port or 'The port'} {rest}"

    @property
    def failed_audit(self) -> str:
        """`agrees, but handles 2 fields wrongly`; empty unless only the audit found faults."""
        audit, agrees = self.report.audit, self.report.verdict == "agrees"
        is_other = not (audit and audit.failed and (agrees or fails_only_the_audit(self.report)))
        return "" if audit is None or is_other else f"agrees, but handles {audit.failed} wrongly"

    @property
    def mark(self) -> tuple[str, str]:
        """The sign before the verdict, and the sign's color. If only the audit found faults, the sign is a yellow
        `!`."""
        is_warned = self.report.verdict == "agrees" and self.failed_audit
        return ("!", "yellow") if is_warned else MARKS[self.report.verdict]

    @property
    def system(self) -> str:
        """The configuration (left out with `--against`) and the precision, such as `llama, float32`."""
        if self.alike:
            return f"{self.report.preset} (also {', '.join(self.alike)}), {self.report.dtype}"
        name = "your configuration" if self.report.preset == "config" else self.report.preset
        return ", ".join(filter(None, ["" if self.report.reference else name, self.report.dtype]))

    @cached_property
    def findings(self) -> list[Finding]:
        return findings(self.report)

    @property
    def first_divergence(self) -> str:
        """The first activation beyond its budget, unless a finding names or explains it."""
        first = self.report.first_divergence
        is_named = first in {fault.where for fault in self.report.faults} or bool(remedy(self.report))
        return "" if is_named else first or ""

    @property
    def not_compared(self) -> list[str]:
        return one_line_a_reason(self.report.not_compared)

    @property
    def not_compared_in_short(self) -> list[str]:
        """The lines about omitted comparisons. Leave out fields that the audit did not exercise, and only count the
        refused values."""
        audit, lines = self.report.audit, self.report.not_compared
        if audit is None:
            return self.not_compared
        fields = audit.files[0]
        named = tuple(f"{fields} {name}: " for name in audit.fields_with("not exercised"))
        refused = tuple(f"{fields} {each.name} {each.value}: " for each in audit.fields if each.counted == "refused")
        number = sum(line.startswith(refused) for line in lines)
        shown = [line for line in lines if not line.startswith((*named, *refused))]
        shown += [f"{fields}: the port refuses {count(number, 'changed value')}"] * bool(number)
        return one_line_a_reason(shown)

    @property
    def notes(self) -> list[str]:
        return each_kind_once(self.report.notes)

    @property
    def compared(self) -> str:
        """The compared values: `27 activations at 25 lengths from 1 to 1,025; loss, generation`."""
        taps = dict.fromkeys(item.tap for item in self.report.measured)
        forward = "the logits" if list(taps) == ["logits"] else count(len(taps), "activation")
        where = f" at {self.report.coverage.inputs}" if self.report.coverage.inputs else ""
        heads = (name for claim in self.report.claims for name in (claim.id.partition(".")[0], claim.id))
        others = dict.fromkeys(CAPABILITIES[head] for head in heads if head in CAPABILITIES)
        return "; ".join(filter(None, [f"{forward}{where}" if taps else "", ", ".join(others)]))

    @property
    def coverage(self) -> str:
        reaches = [f"{each.id}: {each.reach}" for each in self.report.claims if each.reach and each.verdict == "agrees"]
        return "; ".join([self.report.coverage.line, *reaches]) if self.report.coverage.line else ""

    @property
    def audit(self) -> list[str]:
        audit = self.report.audit
        if audit is None:
            return []
        is_asked = any(claim.id.startswith("loader.") for claim in self.report.claims)
        if self.report.verdict != "diverges" or is_asked:
            return audit.lines
        unread = audit.tensors_with("never read")
        return [f"{audit.files[1]}: the result does not depend on {', '.join(unread)}"] if unread else []


def unexplained(finding: Finding, report: Report) -> tuple[str, list[str]]:
    """Return a heading (`wrong shape` or `unexplained`) and explanations for a finding without a cause."""
    notes = notes_on(finding, report)
    if finding.is_misshapen and notes:
        return "wrong shape", notes
    return "wrong shape" if finding.is_misshapen else "unexplained", [*notes, finding.unexplained]


def notes_on(finding: Finding, report: Report) -> list[str]:
    if finding.causes:
        return []
    about = (*(line.place for line in finding.lines), *(fault.where for fault in finding.faults if fault.is_misshapen))
    return each_kind_once(note for note in report.notes if note.startswith(tuple(f"{name} " for name in about)))


def one_line_a_reason(lines: Sequence[str]) -> list[str]:
    """Join `NAME: REASON` with the same reason: `loss, generate: the port has no such method`."""
    names: dict[str, list[str]] = {}
    for line in lines:
        parts = NAME_AND_REASON.fullmatch(line)
        names.setdefault(parts["reason"] if parts else line, []).append(parts["name"] if parts else "")
    return [f"{', '.join(dict.fromkeys(named))}: {reason}" if named[0] else reason for reason, named in names.items()]


def each_kind_once(lines: Iterable[str]) -> list[str]:
    """Merge lines that differ only in numbers or in the probe, and append the number of merged lines."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(re.sub(r"\d+|(?<=on the probe )\w+", "#", line), []).append(line)
    return [first + (f" (and {count(len(more), 'note')} like it)" if more else "") for first, *more in kinds.values()]
