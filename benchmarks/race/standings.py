"""The standings of a race: speed, the share of the machine's limit, and the ratio to the best peer of the kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
from benchmarks.race.candidates import Candidate
from benchmarks.race.race import Result
from benchmarks.workloads import Workload

SET_UP = ("import_seconds", "build_seconds", "first_seconds", "peak_bytes", "device_peak_bytes")
"""What the JSON says of a candidate's way to its first result."""


@dataclass(frozen=True)
class Quartiles:
    """The quartiles over the rounds."""

    low: float
    middle: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quartiles:
        return cls(*map(float, np.percentile(list(values), (25, 50, 75))))

    def times(self, factor: float) -> Quartiles:
        return Quartiles(self.low * factor, self.middle * factor, self.high * factor)


@dataclass(frozen=True)
class Standing:
    """One row: a candidate on a workload."""

    candidate: Candidate
    workload: Workload
    conformity: str
    failed: str
    ready: Mapping[str, Any]
    rounds: int = 0
    seconds: Quartiles | None = None
    """None if it failed; `failed` says why."""
    tokens_per_second: Quartiles | None = None
    per_second: Quartiles | None = None
    """FLOPs a second; for decoding, and for limits of memory, bytes read."""
    share: Quartiles | None = None
    """Of the limit."""
    ratio: Quartiles | None = None
    """Speed as a multiple of that of `rival`, from the ratios of the rounds."""
    rival: str | None = None
    """The best peer of its kind; for the best peer, itself."""

    @property
    def gflops(self) -> float | None:
        """10⁹ FLOPs a second, whatever the limit is."""
        return self.workload.flops / self.seconds.middle / 1e9 if self.seconds and not self.candidate.is_limit else None


def standings(results: Sequence[Result]) -> list[Standing]:
    """A row for every candidate on every workload, kind by kind, the fastest first."""
    rows: list[Standing] = []
    for _, group in groupby(results, lambda result: result.workload.name):
        rows += _of_workload(list(group))
    return rows


def _of_workload(results: Sequence[Result]) -> list[Standing]:
    ran = [result for result in results if result.seconds and not result.failed]
    rows = [_standing(result, limit_of(ran, result.seconds), best_peer(ran, result.candidate)) for result in results]
    kinds = list(dict.fromkeys(row.candidate.kinds[0] for row in rows))

    def place(row: Standing) -> tuple[bool, int, float]:
        seconds = row.seconds.middle if row.seconds else np.inf
        return row.candidate.is_limit, kinds.index(row.candidate.kinds[0]), seconds

    return sorted(rows, key=place)


def limit_of(results: Iterable[Result], rounds: Iterable[int]) -> float | None:
    """The most FLOPs or bytes a second that any library reached in these rounds, in the median."""
    rates = [
        result.ready["work"] / median(result.seconds[turn] for turn in common)
        for result in results
        if result.ready and result.candidate.is_limit and (common := result.seconds.keys() & set(rounds))
    ]
    return max(rates, default=None)


def best_peer(results: Iterable[Result], candidate: Candidate) -> Result | None:
    """The fastest candidate of the same kind that is not ours; of any kind, if there is none."""
    if candidate.is_limit:
        return None
    peers = [result for result in results if not (result.candidate.ours or result.candidate.is_limit)]
    peers = [peer for peer in peers if candidate.kinds[0] in peer.candidate.kinds] or peers
    return min(peers, key=lambda peer: median(peer.seconds.values()), default=None)


def ratios(mine: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """Speed ratio in each round that both ran; above 1, mine is faster."""
    return [theirs[turn] / mine[turn] for turn in mine.keys() & theirs.keys()]


def _standing(result: Result, limit: float | None, rival: Result | None) -> Standing:
    candidate, workload, ready = result.candidate, result.workload, result.ready or {}
    row = Standing(candidate, workload, _conformity(result), result.failed, ready)
    if result.failed or not result.seconds:
        return row
    seconds = list(result.seconds.values())
    work = ready["work"] or (workload.bytes_read if workload.kind == "decode" else workload.flops)
    per_second = Quartiles.of(work / each for each in seconds)
    return replace(
        row,
        rounds=len(seconds),
        seconds=Quartiles.of(seconds),
        tokens_per_second=None if candidate.is_limit else Quartiles.of(workload.tokens / each for each in seconds),
        per_second=per_second,
        share=per_second.times(1 / limit) if limit else None,
        ratio=Quartiles.of(ratios(result.seconds, rival.seconds)) if rival else None,
        rival=rival.candidate.name if rival else None,
    )


def _conformity(result: Result) -> str:
    if result.candidate.is_limit:
        return ""
    if result.candidate.own_weights:
        return "own"
    held = (result.ready or {}).get("conformity")
    if held is None:
        return ""
    if result.workload.kind == "decode":
        return "same" if held["error"] == 0 else "other"
    return f"{held['share']:.0%}"


def as_dict(row: Standing) -> dict[str, Any]:
    """JSON values."""
    quartiles = ("seconds", "tokens_per_second", "per_second", "share", "ratio")
    return {
        "candidate": row.candidate.name,
        "kinds": row.candidate.kinds,
        "ours": row.candidate.ours,
        "workload": row.workload.name,
        **{name: vars(value) if (value := getattr(row, name)) else None for name in quartiles},
        "rounds": row.rounds,
        "gflops_per_second": row.gflops,
        "best_peer": row.rival,
        "conformity": row.ready.get("conformity") or row.conformity,
        "failed": row.failed,
        "environment": row.candidate.environment,
        **{name: row.ready.get(name) for name in SET_UP},
    }
