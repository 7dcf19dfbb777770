"""The result of a check, as data: the verdict, divergences with their causes, and everything not compared."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from transparity.text import SENTENCE, VALUE, safe
from transparity_conformance.report.audit.result import Audit
from transparity_conformance.report.comparison import share
from transparity_conformance.report.coverage import Coverage
from transparity_conformance.report.formatting import count
from transparity_conformance.report.ranks import RanksComparison, ThirdComparison
from transparity_conformance.report.timing import Timing

Verdict = Literal["agrees", "diverges", "inconclusive"]

EXIT_CODES: dict[str, int] = {"agrees": 0, "diverges": 1, "inconclusive": 3}
"""The exit code of each verdict; 2 is for bad usage and bad input."""

VERBS = {"agrees": "agrees", "diverges": "diverges", "inconclusive": "is inconclusive"}

REMARK = 4 * SENTENCE
"""The longest remark of a report, in characters; several sentences and a list of names fit."""


LIBRARIES = ("transparity", "numpy", "torch", "jax")
PORTS = ("flax", "transformers", "equinox", "keras", "mlx", "onnxruntime")
"""Libraries that only a port imports, in a separate process."""

ABSENT = "not installed"


def environment() -> dict[str, str]:
    """The versions of Python, of the platform, and of the libraries that are imported here."""
    found = {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}"}
    return found | {name: _version(name) for name in LIBRARIES if name in sys.modules}


def installed() -> dict[str, str]:
    """The versions of Python, of the platform, and of every library of interest that is installed."""
    found = environment() | {name: _version(name) for name in (*LIBRARIES, *PORTS)}
    return {name: version for name, version in found.items() if version != ABSENT}


@functools.cache  # metadata of a package with many dependencies takes milliseconds to read
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ABSENT


@contextlib.contextmanager
def known_so_far(verdict: str, first: str | None) -> Iterator[None]:
    """Add a note on the forward pass to the exception that ends a check: Ctrl-C, or the end of the port's process."""
    try:
        yield
    except BaseException as error:
        where = f", first at {first}" if first else ""
        error.add_note(f"By then its forward pass was compared: it {VERBS[verdict]}{where}.")
        raise


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a check that has already found a divergence."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report
        """Everything found before the interruption."""


@dataclass(frozen=True)
class Cause:
    """A fault in the reference, and the part of the disagreement that it explains."""

    mistake: str
    """Its id in the catalogue, such as `attention-scale`."""
    says: str
    """The fault in words: the difference between the port and the reference."""
    value: float | None
    """The number that was fitted, if the fault has one."""
    residual: float
    """The largest difference left on the first probe with the fault in the reference."""
    explained: float
    """The share of the disagreement that disappears: 1 is all of it."""
    at: str = ""
    """The first tap at which the fault was put into the reference, if it is not the divergence's own."""
    source: Mapping[str, Any] | None = None
    """Its own line of the port, where several causes act together: `file`, `line` and `code`."""


@dataclass(frozen=True)
class Impact:
    """The effect of one divergence, or of all with the same cause, over all probes."""

    positions: Mapping[str, int]
    """`changed` of the real positions (`of`) have logits beyond their budget."""
    argmax_changes: int
    """The real positions whose largest logit is another one."""
    at_padding_only: bool
    """Whether logits change at padded positions and at no real one."""

    @property
    def sentence(self) -> str:
        """`Effect: 31 of 56 tokens change; the predicted token changes for 4.`"""
        if self.at_padding_only:
            return "Effect: logits change only at padding."
        if not self.positions["changed"]:
            return "Effect: no logit changes."
        changed = f"Effect: {self.positions['changed']:,} of {count(self.positions['of'], 'token')} change"
        return f"{changed}; the predicted token changes for {self.argmax_changes or 'none'}."


def largest_impact(impacts: Iterable[Impact | None]) -> Impact | None:
    """The impact that changes most."""
    known = [impact for impact in impacts if impact is not None]
    return max(known, key=lambda impact: (impact.positions["changed"], impact.argmax_changes), default=None)


@dataclass(frozen=True)
class Divergence:
    """A segment of the port that is wrong even with right inputs."""

    where: str
    """The tap at the end of the segment."""
    error: float
    budget: float
    causes: tuple[Cause, ...] = ()
    """The causes that make the disagreement vanish, the likeliest first; none: unexplained."""
    indistinguishable: tuple[str, ...] = ()
    """Ids of other faults that explain it as well as the first cause."""
    split_by: str | None = None
    """The probe that would tell them apart."""
    probe: str = ""
    """Position of the largest error."""
    profile: dict[str, Any] = field(default_factory=dict)
    """The largest error by `row`, `position`, `head` and `feature`, as lists of numbers."""
    is_misshapen: bool = False
    """Whether its shape is wrong; the notes name the shape."""
    impact: Impact | None = None
    """Its effect on the logits; None if the shape is wrong, or for a capability."""
    source: Mapping[str, Any] | None = None
    """`file`, `line` and `code` of the port; None if they are not known."""
    reference_source: Mapping[str, Any] | None = None
    """The same of the implementation that it departs from, with `--against`."""


@dataclass(frozen=True)
class Measured:
    """One tap of one probe, compared end to end and by its own segment."""

    tap: str
    probe: str
    error: float
    """The largest difference from the oracle, end to end."""
    budget: float
    segment_error: float
    """The largest difference from the reference on the port's own earlier activations."""
    segment_budget: float
    profile: dict[str, Any] = field(default_factory=dict)

    @property
    def share(self) -> float:
        return share(self.error, self.budget)

    @property
    def segment_share(self) -> float:
        return share(self.segment_error, self.segment_budget)


@dataclass(frozen=True)
class ClaimResult:
    """One claim about the port, for example that two runs are equal."""

    id: str
    verdict: Verdict
    error: float
    budget: float
    where: str
    reach: str = ""
    """The calls that the claim is about, where they differ from `coverage`."""


@dataclass(frozen=True)
class Report:
    """The result for one configuration."""

    preset: str
    """Its name, or `config` for a configuration of the user's own."""
    verdict: Verdict
    first_divergence: str | None
    faults: tuple[Divergence, ...] = ()
    claims: tuple[ClaimResult, ...] = ()
    measured: tuple[Measured, ...] = ()
    """Every comparison, in the order of the forward pass, probe by probe."""
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks on equivalent forms, rounding, and the run."""
    dtype: str = "float32"
    port: str = ""
    """Its name, such as `my.py:load`, or the command; empty if it has none."""
    coverage: Coverage = field(default_factory=Coverage)
    """The range of the verdict."""

    audit: Audit | None = None
    """The fields of config.json and the tensors of a loader; None if they were not audited."""
    ranks: RanksComparison | None = None
    """The comparison of several ranks with one rank of the same code; None for one rank."""
    reference: str = ""
    """The implementation that the port is compared with, for `--against`; empty for our columns."""
    third: ThirdComparison | None = None
    """The comparison with a third implementation; None without one."""
    other_fields: Mapping[str, tuple[object, object]] = field(default_factory=dict)
    """Fields in which the port differs from its configuration, with both values, if there are several."""
    environment: Mapping[str, str] = field(default_factory=environment)
    """The versions of everything that took part."""
    timing: Mapping[str, Timing] = field(default_factory=dict, compare=False)
    """The time of each stage of the check, in order."""

    def __post_init__(self) -> None:
        for name in ("preset", "port", "reference"):
            object.__setattr__(self, name, safe(getattr(self, name), VALUE))
        for name in ("not_compared", "notes"):
            object.__setattr__(self, name, tuple(safe(line, REMARK) for line in getattr(self, name)))

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def title(self) -> str:
        """`my.py:load on llama`."""
        return f"{self.port} on {self.preset}" if self.port else self.preset

    def adding(
        self,
        *faults: Divergence,
        claims: Iterable[ClaimResult] = (),
        not_compared: Iterable[str] = (),
        notes: Iterable[str] = (),
        **fields: Any,
    ) -> Report:
        """Return the report with further findings; a divergence makes it diverge, after those it already has."""
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
        """JSON values, as the public contract has them; an infinite number is the string `"inf"`."""
        fields = {
            "port": self.port,
            "preset": self.preset,
            "verdict": self.verdict,
            "dtype": self.dtype,
            "first_divergence": self.first_divergence,
            "faults": [dataclasses.asdict(fault) for fault in self.faults],
            "claims": [dataclasses.asdict(claim) for claim in self.claims],
            "coverage": self.coverage.as_dict(),
            "audit": None if self.audit is None else self.audit.as_dict(),
            "ranks": None if self.ranks is None else self.ranks.as_dict(),
            "reference": self.reference,
            "third": None if self.third is None else self.third.as_dict(),
            "taps": [dataclasses.asdict(item) | {"share": item.share} for item in self.measured],
            "not_compared": self.not_compared,
            "notes": self.notes,
            "other_fields": {name: {"given": a, "port": b} for name, (a, b) in self.other_fields.items()},
            "environment": dict(self.environment),
            "timing": {stage: time.as_dict() for stage, time in self.timing.items()},
        }
        plain: dict[str, Any] = _plain(fields)
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else "inf"
    return value
