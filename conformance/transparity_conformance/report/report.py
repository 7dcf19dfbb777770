"""The result of a check as data: the verdict, divergences with their causes, and what was not compared."""

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

from transparity import __version__
from transparity.text import SENTENCE, VALUE, safe
from transparity_conformance.report.audit import Audit
from transparity_conformance.report.comparison import Compared, share
from transparity_conformance.report.formatting import count, format_share, plain
from transparity_conformance.report.parts import Coverage, RanksComparison, ThirdComparison, Timing

Verdict = Literal["agrees", "diverges", "inconclusive"]

EXIT_CODES: dict[str, int] = {"agrees": 0, "diverges": 1, "inconclusive": 3}
"""The exit code for each verdict; exit code 2 means wrong usage or wrong input."""

VERBS = {
    "diverges": ("differs", "differ"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "agrees": ("agrees", "agree"),
}
"""The verb for each verdict, for one port and for several ports; the worst verdict comes first."""

REMARK = 4 * SENTENCE
"""The largest length of a note in a report, in characters: enough for several sentences and a list of names."""


LIBRARIES = ("numpy", "torch", "jax", "flax", "transformers", "equinox", "keras", "mlx", "onnxruntime")


@functools.cache  # reading the metadata of a package takes milliseconds
def environment() -> Mapping[str, str]:
    """Return the versions of Python, the platform, this package, and every installed library that ports use."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    found["transparity"] = __version__
    for name in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


@contextlib.contextmanager
def known_so_far(verdict: str, first: str | None) -> Iterator[None]:
    """Add the result of the forward pass to an exception that ends a check, such as Ctrl-C or a port's crash."""
    try:
        yield
    except BaseException as error:
        where = f", first at {first}" if first else ""
        error.add_note(f"The forward pass was already compared: it {VERBS[verdict][0]}{where}.")
        raise


class Interrupted(KeyboardInterrupt):
    """Raised if the user presses Ctrl-C during a check that has already found a divergence."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        """Everything that was found before the interruption."""


@dataclass(frozen=True)
class Cause:
    """A fault in the reference, and the share of the disagreement that it explains."""

    mistake: str
    """The id of the fault in the catalogue, such as `attention-scale`."""
    says: str
    """A sentence that says how the port differs from the reference."""
    value: float | None = None
    """The fitted number, if the fault has one."""
    residual: float = 0.0
    """The largest difference on the first probe that remains with the fault in the reference."""
    explained: float = 1.0
    """The share of the disagreement that disappears with the fault in the reference; 1 means all of it."""
    at: str = ""
    """The first tap with the fault in the reference; empty if it is the divergence's own tap."""
    source: Mapping[str, Any] | None = None
    """This cause's line of the port (`file`, `line`, `code`), if several causes act together."""


@dataclass(frozen=True)
class Impact:
    """The effect on all probes of one divergence, or of all divergences with the same cause."""

    positions: Mapping[str, int]
    """The number of positions without padding (`of`), and of positions with wrong logits (`changed`).
    """
    argmax_changes: int
    """The number of positions without padding whose largest logit belongs to another token."""
    at_padding_only: bool

    @property
    def sentence(self) -> str:
        """The effect in a sentence: `Effect: the logits of 31 of 56 tokens change, the predicted token of 4.`"""
        if self.at_padding_only:
            return "Effect: logits change only at padding."
        if not self.positions["changed"]:
            return "Effect: no logit changes."
        changed = (
            f"Effect: the logits of {self.positions['changed']:,} of {count(self.positions['of'], 'token')} change"
        )
        return f"{changed}, the predicted token of {self.argmax_changes or 'none'}."


def largest_impact(impacts: Iterable[Impact | None]) -> Impact | None:
    known = [impact for impact in impacts if impact is not None]
    return max(known, key=lambda impact: (impact.positions["changed"], impact.argmax_changes), default=None)


@dataclass(frozen=True)
class Divergence(Compared):
    """A segment of the port whose result is wrong even with right inputs."""

    where: str
    """The tap at the end of the segment."""
    error: float
    budget: float
    causes: tuple[Cause, ...] = ()
    """The causes that together explain the disagreement, the most likely first; empty if it is unexplained."""
    indistinguishable: tuple[str, ...] = ()
    """Ids of other faults that explain the difference as well as the first cause."""
    split_by: str | None = None
    """The probe that would distinguish these faults."""
    probe: str = ""
    """The probe with the largest error."""
    profile: dict[str, Any] = field(default_factory=dict)
    """The largest errors along each axis (`row`, `position`, `head`, `feature`), as lists of numbers."""
    is_misshapen: bool = False
    """Whether the value has a wrong shape, which the notes name."""
    impact: Impact | None = None
    """The effect on the logits; None for a wrong shape or a capability."""
    source: Mapping[str, Any] | None = None
    """`file`, `line` and `code` of the port; None if they are not known."""
    reference_source: Mapping[str, Any] | None = None
    """With `--against`, `file`, `line` and `code` of the other implementation."""


@dataclass(frozen=True)
class Measured(Compared):
    """The comparison of one tap on one probe, end to end and from the port's own earlier activations."""

    tap: str
    probe: str
    error: float
    """The largest difference from the reference's activation, end to end."""
    budget: float
    segment_error: float
    """The largest difference from the value that the reference computes from the port's own earlier activations."""
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
    """The calls that the claim covers, if they differ from `coverage`."""

    @classmethod
    def of(cls, name: str, error: float, budget: float, where: str) -> ClaimResult:
        """Return a claim that agrees if its error is within its budget."""
        return cls(name, "diverges" if share(error, budget) > 1 else "agrees", error, budget, where)

    @property
    def used(self) -> str:
        """The used share of the budget; `exact` if neither rounding was allowed nor an error found."""
        return "exact" if self.budget == self.error == 0 else format_share(self.share)


@dataclass(frozen=True, repr=False)
class Report:
    """The result for one configuration; `str(report)` is the answer of the command."""

    preset: str
    """The name of the preset, or `config` for a user's own configuration."""
    verdict: Verdict
    first_divergence: str | None
    faults: tuple[Divergence, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    measured: tuple[Measured, ...] = ()
    """Every comparison, sorted by probe and then in the order of the forward pass."""
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Notes about equivalent forms, rounding, and the run."""
    dtype: str = "float32"
    port: str = ""
    """The port's name, such as `my.py:load`, or its command; empty without a name."""
    coverage: Coverage = field(default_factory=Coverage)
    """The calls for which the verdict holds."""

    audit: Audit | None = None
    ranks: RanksComparison | None = None
    """The comparison of several ranks with one rank of the same code; None for a single rank."""
    reference: str = ""
    """The implementation that `--against` names; otherwise empty."""
    third: ThirdComparison | None = None
    """The comparison with a third implementation; None without one."""
    other_fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """If several fields differ from the configuration: their names, with the configured and the port's values."""
    environment: Mapping[str, str] = field(default_factory=environment)
    """The versions of Python, the platform and the libraries."""
    timing: Mapping[str, Timing] = field(default_factory=dict, compare=False)
    """The time of each stage of the check, in order."""

    def __post_init__(self) -> None:
        for name in ("preset", "port", "reference"):
            object.__setattr__(self, name, safe(getattr(self, name), VALUE))
        for name in ("not_compared", "notes"):
            object.__setattr__(self, name, tuple(safe(line, REMARK) for line in getattr(self, name)))

    def __str__(self) -> str:
        # The layout imports this module, so it is imported only when a report is printed.
        return str(import_module("transparity_conformance.report.check.terminal").as_text([self]))

    def __repr__(self) -> str:
        return str(self)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def title(self) -> str:
        return f"{self.port} on {self.preset}" if self.port else self.preset

    def adding(
        self,
        *faults: Divergence,
        claims: Iterable[ClaimResult] = (),
        not_compared: Iterable[str] = (),
        notes: Iterable[str] = (),
        **fields: Any,
    ) -> Report:
        """Return the report with more findings; a divergence makes the verdict `diverges`."""
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
        """Return JSON values that follow report.schema.json; an infinite number is the string `"inf"`."""
        fields = dict(vars(self))
        fields["taps"] = [vars(item) | {"share": item.share} for item in fields.pop("measured")]
        fields["third"] = None if self.third is None else self.third.as_dict()
        fields["other_fields"] = {name: {"given": a, "port": b} for name, (a, b) in self.other_fields.items()}
        fields["timing"] = {stage: time.as_dict() for stage, time in self.timing.items()}
        found: dict[str, Any] = plain(fields)
        return found


@dataclass(frozen=True)
class CapabilityResult:
    """The claims about a capability, its divergences, and what was not compared."""

    claims: tuple[ClaimResult, ...] = ()
    faults: tuple[Divergence, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calls: int = 0
    """The number of calls of one object, each compared with the same call of a new object."""
    untested: tuple[str, ...] = ()
    """The calls on which the port failed, so that the verdict is not `agrees`."""

    def __add__(self, other: CapabilityResult) -> CapabilityResult:
        return CapabilityResult(
            self.claims + other.claims,
            self.faults + other.faults,
            self.not_compared + other.not_compared,
            self.notes + other.notes,
            self.calls + other.calls,
            self.untested + other.untested,
        )


def not_compared(*reasons: str) -> CapabilityResult:
    return CapabilityResult(not_compared=reasons)


def with_capabilities(report: Report, found: CapabilityResult) -> Report:
    coverage = dataclasses.replace(report.coverage, calls=report.coverage.calls + found.calls)
    both = (*found.not_compared, *report.not_compared)
    added = report.adding(*found.faults, claims=found.claims, notes=found.notes, coverage=coverage)
    return dataclasses.replace(added, not_compared=both)
