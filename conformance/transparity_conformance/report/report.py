"""The result of a check as data: the verdict, the divergences with their causes, and what was not compared."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from transparity.text import SENTENCE, VALUE, safe
from transparity_conformance.report.audit import Audit
from transparity_conformance.report.comparison import Compared, share
from transparity_conformance.report.formatting import count, format_share, plain
from transparity_conformance.report.parts import Coverage, RanksComparison, ThirdComparison, Timing

Verdict = Literal["agrees", "diverges", "inconclusive"]

EXIT_CODES: dict[str, int] = {"agrees": 0, "diverges": 1, "inconclusive": 3}
"""Exit codes; exit code 2 means wrong usage or wrong input."""

VERBS = {
    "diverges": ("differs", "differ"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "agrees": ("agrees", "agree"),
}
"""Verbs for one port and for several ports, the worst verdict first."""

REMARK = 4 * SENTENCE
"""The longest note in characters: several sentences and a list of names."""


LIBRARIES = ("transparity", "numpy", "torch", "jax", "flax", "transformers", "equinox", "keras", "mlx", "onnxruntime")


@functools.cache  # reading the metadata of a package takes milliseconds
def environment() -> Mapping[str, str]:
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@contextlib.contextmanager
def known_so_far(verdict: str, first: str | None) -> Iterator[None]:
    """Add a note with the verdict about the forward pass to an exception that ends a check, such as Ctrl-C."""
    try:
        yield
    except BaseException as error:
        where = f", first at {first}" if first else ""
        error.add_note(f"Before this error, the forward pass was compared: it {VERBS[verdict][0]}{where}.")
        raise


class Interrupted(KeyboardInterrupt):
    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        """The report so far."""


DIVERGES = "the forward pass diverges"
EARLIER = "an earlier comparison failed"
"""`DIVERGES` and `EARLIER` are reasons why a check compared only the forward pass."""

OR = " (or "


@dataclass(frozen=True)
class Cause:
    """A fault that makes the reference compute (almost) the port's values."""

    mistake: str
    """The id in the catalogue, such as `attention-scale`."""
    says: str
    """A sentence that says how the port differs from the reference."""
    value: float | None = None
    """The fitted number, such as an eps, if any."""
    residual: float = 0.0
    """The largest difference that remains on the first probe with the fault in the reference."""
    explained: float = 1.0
    """The share of the difference that disappears with the fault in the reference."""
    at: str = ""
    """The activation that the fault changes; empty if this activation is `where` of the divergence."""
    source: Mapping[str, Any] | None = None
    """The port's line (`file`, `line`, `code`), if several causes act together."""


ANSWERS = {
    "logits": ("logits", "token", "predicted token"),
    "hidden": ("hidden states", "position", ""),
    "pooled": ("pooled states", "row", ""),
    "classes": ("logits", "row", "predicted class"),
}
"""For each `head`: the output's name, the unit with one output, and a prediction's name."""


@dataclass(frozen=True)
class Impact:
    """How one divergence, or all divergences with the same cause, change the model's output on all probes."""

    positions: Mapping[str, int]
    """`of`: all positions except padding; `changed`: positions with a wrong output. A pooled model has one output per
    row, so `positions` counts rows."""
    argmax_changes: int
    """The number of positions, without padding, at which another output is the largest, such as another token."""
    at_padding_only: bool
    head: str = "logits"

    @property
    def changes_logits(self) -> bool:
        return self.at_padding_only or self.positions["changed"] > 0

    @property
    def sentence(self) -> str:
        """A sentence such as `Effect: the logits of 31 of 56 tokens change, the predicted token of 4.`"""
        output, unit, predicted = ANSWERS[self.head]
        if self.at_padding_only:
            return f"Effect: {output} change only at padding."
        if not self.positions["changed"]:
            return f"Effect: no {output.removesuffix('s')} changes."
        changed = f"Effect: the {output} of {self.positions['changed']:,} of {count(self.positions['of'], unit)} change"
        moved = f", the {predicted} of {self.argmax_changes}" if self.argmax_changes else f", but no {predicted} does"
        return f"{changed}{moved if predicted else ''}."


def largest_impact(impacts: Iterable[Impact | None]) -> Impact | None:
    known = [impact for impact in impacts if impact is not None]
    return max(known, key=lambda impact: (impact.positions["changed"], impact.argmax_changes), default=None)


@dataclass(frozen=True)
class Divergence(Compared):
    """A wrong step of a port. From the same earlier activations, the reference computes another value."""

    where: str
    """The activation that the step computes."""
    error: float
    budget: float
    causes: tuple[Cause, ...] = ()
    """The causes that together explain the difference, the most likely first."""
    indistinguishable: tuple[str, ...] = ()
    """The ids of faults that explain the difference as well as the first cause."""
    split_by: str | None = None
    """A probe that would distinguish the first cause from `indistinguishable`."""
    probe: str = ""
    profile: dict[str, Any] = field(default_factory=dict)
    """The largest errors along each axis (`row`, `position`, `head`, `feature`)."""
    is_misshapen: bool = False
    """Whether the shape is wrong; a note of the report states the shapes."""
    impact: Impact | None = None
    """The effect on the logits; None for a wrong shape or a capability such as generation."""
    source: Mapping[str, Any] | None = None
    """The port's line (`file`, `line`, `code`), if known."""
    reference_source: Mapping[str, Any] | None = None
    """With `--against`, the other implementation's line."""

    @property
    def unexplained(self) -> Divergence:
        return dataclasses.replace(self, causes=(), indistinguishable=(), split_by=None)


@dataclass(frozen=True)
class Measured(Compared):
    """The comparison of an activation on a probe, with and without the errors of earlier activations."""

    tap: str
    probe: str
    error: float
    """The largest difference, including errors of earlier activations."""
    budget: float
    segment_error: float
    """The largest difference if the reference starts from the port's own earlier activations."""
    segment_budget: float
    profile: dict[str, Any] = field(default_factory=dict)

    @property
    def segment_share(self) -> float:
        return share(self.segment_error, self.segment_budget)


@dataclass(frozen=True)
class ClaimResult(Compared):
    id: str
    verdict: Verdict
    error: float
    budget: float
    where: str
    reach: str = ""
    """The claim's calls, if they differ from the report's `coverage`."""

    @classmethod
    def of(cls, name: str, error: float, budget: float, where: str) -> ClaimResult:
        return cls(name, "diverges" if share(error, budget) > 1 else "agrees", error, budget, where)

    @property
    def used(self) -> str:
        """The used share of the budget as text, or `exact` if the budget and the error are 0."""
        return "exact" if self.budget == self.error == 0 else format_share(self.share)


@dataclass(frozen=True, repr=False)
class Report:
    """The result for one configuration; `str(report)` is the text that the command prints."""

    preset: str
    """The preset, or `config` for the user's own configuration."""
    verdict: Verdict
    first_divergence: str | None
    faults: tuple[Divergence, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    measured: tuple[Measured, ...] = ()
    """Every comparison, by probe and then in the order of the forward pass."""
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks, for example about rounding or an equivalent formula."""
    dtype: str = "float32"
    port: str = ""
    """The port's name, such as `my.py:load`, or its command."""
    coverage: Coverage = field(default_factory=Coverage)

    audit: Audit | None = None
    ranks: RanksComparison | None = None
    """The comparison with a single rank, if the check ran on several ranks."""
    reference: str = ""
    """The other implementation of `--against`."""
    third: ThirdComparison | None = None
    other_fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """The fields whose value differs in the port's model, as (given value, port's value)."""
    environment: Mapping[str, str] = field(default_factory=environment)
    """The versions of Python, the platform and the libraries."""
    timing: Mapping[str, Timing] = field(default_factory=dict, compare=False)
    """The time of each stage, in execution order."""

    def __post_init__(self) -> None:
        for name in ("preset", "port", "reference"):
            object.__setattr__(self, name, safe(getattr(self, name), VALUE))
        for name in ("not_compared", "notes"):
            object.__setattr__(self, name, tuple(safe(line, REMARK) for line in getattr(self, name)))

    def __str__(self) -> str:
        # Import late, because `terminal` imports this module.
        return str(import_module("transparity_conformance.report.check.terminal").as_text([self]))

    def __repr__(self) -> str:
        return str(self)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def adding(
        self,
        *faults: Divergence,
        claims: Iterable[ClaimResult] = (),
        not_compared: Iterable[str] = (),
        notes: Iterable[str] = (),
        **fields: Any,
    ) -> Report:
        """Return a report with more findings; a fault changes the verdict to `diverges`."""
        if faults:
            fields = {"verdict": "diverges", "first_divergence": self.first_divergence or faults[0].where} | fields
        return dataclasses.replace(
            self,
            faults=(*self.faults, *faults),
            claims=(*self.claims, *claims),
            not_compared=(*self.not_compared, *not_compared),
            notes=(*self.notes, *notes),
            **fields,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values that follow report.schema.json; infinity is the string `"inf"`."""
        # Import late, because `findings` imports this module.
        findings = import_module("transparity_conformance.report.check.findings").findings(self)
        fields = dict(vars(self)) | {"findings": [finding.as_dict(self.faults) for finding in findings]}
        fields["taps"] = [vars(item) | {"share": item.share} for item in fields.pop("measured")]
        fields["third"] = None if self.third is None else self.third.as_dict()
        fields["other_fields"] = {name: {"given": a, "port": b} for name, (a, b) in self.other_fields.items()}
        fields["timing"] = {stage: time.as_dict() for stage, time in self.timing.items()}
        found: dict[str, Any] = plain(fields)
        return found


@dataclass(frozen=True)
class CapabilityResult:
    """The result for a capability, such as generation: claims, divergences, and what was not compared."""

    claims: tuple[ClaimResult, ...] = ()
    faults: tuple[Divergence, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calls: int = 0
    """The number of calls of one built model. Each call was compared with the same call of a newly built model."""
    untested: tuple[str, ...] = ()
    """Calls that failed in the port, which prevent the verdict `agrees`."""

    def __add__(self, other: CapabilityResult) -> CapabilityResult:
        names = [each.name for each in dataclasses.fields(self)]
        return CapabilityResult(*(getattr(self, name) + getattr(other, name) for name in names))


def not_compared(*reasons: str) -> CapabilityResult:
    return CapabilityResult(not_compared=reasons)


def with_capabilities(report: Report, found: CapabilityResult) -> Report:
    coverage = dataclasses.replace(report.coverage, calls=report.coverage.calls + found.calls)
    both = (*found.not_compared, *report.not_compared)
    added = report.adding(*found.faults, claims=found.claims, notes=found.notes, coverage=coverage)
    return dataclasses.replace(added, not_compared=both)
