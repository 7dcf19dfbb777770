"""The rows of a race: each candidate's time, and its speed relative to the machine's limit and to the best peer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
from benchmarks.race.candidates import LIMIT, Candidate
from benchmarks.race.race import Result
from benchmarks.race.timing import WORK
from benchmarks.workloads import WORKLOADS, Workload

DIGITS = 6


@dataclass(frozen=True)
class Quartiles:
    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quartiles:
        return cls(*map(float, np.percentile(list(values), (25, 50, 75))))

    def times(self, factor: float) -> Quartiles:
        return Quartiles(self.low * factor, self.middle * factor, self.high * factor)

    def under(self, work: float) -> Quartiles:
        """Return the quartiles of `work / x`, where `self` has the quartiles of x."""
        return Quartiles(work / self.high, work / self.middle, work / self.low)


@dataclass(frozen=True)
class Row:
    """The figures of a candidate on a workload, for the printed table, the plots and the results file."""

    workload: str
    candidate: str
    kind: str
    ours: bool
    failed: str = ""
    rounds: int = 0
    seconds: Quartiles | None = None
    """None if the candidate failed (`failed` says why)."""
    share: Quartiles | None = None
    """The speed as a share of the machine's limit."""
    ratio: Quartiles | None = None
    """The speed relative to `best_peer`, as quartiles over all rounds."""
    best_peer: str | None = None
    """The peer with which `ratio` compares the candidate; the fastest peer is compared with itself."""
    conformity: Mapping[str, float] | None = None
    first_seconds: float | None = None
    import_seconds: float | None = None
    peak_bytes: float | None = None

    @property
    def is_limit(self) -> bool:
        return self.kind == LIMIT

    @property
    def task(self) -> Workload:
        return WORKLOADS[self.workload]

    @property
    def tokens_per_second(self) -> Quartiles | None:
        return self.seconds.under(self.task.tokens) if self.seconds and not self.is_limit else None

    @property
    def gigas(self) -> float | None:
        return (WORK if self.is_limit else self.task.flops) / self.seconds.middle / 1e9 if self.seconds else None

    def as_dict(self) -> dict[str, Any]:
        """Return all fields except empty ones as JSON values, with `DIGITS` significant digits."""
        return {name: rounded(value) for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Row:
        quartiles: dict[str, Any] = {
            name: Quartiles(**fields[name]) for name in ("seconds", "share", "ratio") if name in fields
        }
        return cls(**fields | quartiles)


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def rows_of(results: Sequence[Result]) -> list[Row]:
    rows: list[Row] = []
    for _, group in groupby(results, lambda result: result.workload.name):
        rows += _of_workload(list(group))
    return rows


def _of_workload(results: Sequence[Result]) -> list[Row]:
    ran = [result for result in results if result.seconds and not result.failed]
    rows = [_row(result, limit_of(ran, result.seconds), best_peer(ran, result.candidate)) for result in results]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    return sorted(
        rows, key=lambda row: (row.is_limit, kinds.index(row.kind), row.seconds.middle if row.seconds else np.inf)
    )


def limit_of(results: Iterable[Result], rounds: Iterable[int]) -> float | None:
    """Return the machine's limit, in FLOPs or bytes per second: the highest median rate of a library in `rounds`."""
    rates = [
        WORK / median(result.seconds[turn] for turn in common)
        for result in results
        if result.candidate.is_limit and (common := result.seconds.keys() & set(rounds))
    ]
    return max(rates, default=None)


def best_peer(results: Iterable[Result], candidate: Candidate) -> Result | None:
    """Return the fastest peer of the candidate's kind; if the kind has no peer, the fastest peer of this checkout.

    With two checkouts, the only peer of an implementation is the same implementation of the other checkout.
    """
    if candidate.is_limit:
        return None
    peers = [result for result in results if not (result.candidate.ours or result.candidate.is_limit)]
    alike = [peer for peer in peers if candidate.kinds[0] in peer.candidate.kinds]
    peers = alike or [peer for peer in peers if peer.candidate.root is None]
    return min(peers, key=lambda peer: median(peer.seconds.values()), default=None)


def ratios(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Return the ratio of speeds in every common round; if above 1, `mine` is faster."""
    return [theirs[turn] / mine[turn] for turn in mine.keys() & theirs.keys()]


def _row(result: Result, limit: float | None, rival: Result | None) -> Row:
    candidate, workload, ready = result.candidate, result.workload, result.ready
    row = Row(workload.name, candidate.name, candidate.kinds[0], candidate.ours, result.failed, **ready)
    if result.failed or not result.seconds:
        return row
    seconds = Quartiles.of(result.seconds.values())
    work = WORK if candidate.is_limit else workload.bytes_read if workload.kind == "decode" else workload.flops
    return replace(
        row,
        rounds=len(result.seconds),
        seconds=seconds,
        share=seconds.under(work / limit) if limit else None,
        ratio=Quartiles.of(ratios(result.seconds, rival.seconds)) if rival else None,
        best_peer=rival.candidate.name if rival else None,
    )
