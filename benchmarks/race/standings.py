"""Who stands where: speed, the share of what the machine can do, and the ratio to the best peer of the kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
from benchmarks.race.candidates import Candidate
from benchmarks.race.rounds import Result, baseline
from benchmarks.race.workloads import Workload

Seconds = Mapping[tuple[int, int], float]

FINALISTS = 2
"""So many peers of a kind meet ours once more: the heats do not always tell the best from the second."""


@dataclass(frozen=True)
class Quartiles:
    """A quarter, the half, and three quarters of the rounds were below."""

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
    seconds: Quartiles | None
    """None if it failed; `failed` says why."""
    rounds: int
    heats: tuple[int, ...]
    """With whom it was alive: those of one heat ran side by side. Finals are counted from −1 down."""
    tokens_per_second: Quartiles | None
    per_second: Quartiles | None
    """FLOPs a second; of decoding, and of limits that are about memory, bytes read."""
    share: Quartiles | None
    """Of the limit."""
    ratio: Quartiles | None
    """How many times as fast it is as `rival`."""
    rival: str | None
    """The best peer of its kind: of a peer that is the best, itself."""
    conformity: str
    failed: str
    ready: Mapping[str, Any]

    @property
    def gflops(self) -> float | None:
        """10⁹ FLOPs a second, whatever the limit is about."""
        return self.workload.flops / self.seconds.middle / 1e9 if self.seconds and not self.candidate.is_limit else None


def standings(results: Sequence[Result]) -> list[Standing]:
    """A row for every candidate on every workload, kind by kind, the fastest first."""
    rows: list[Standing] = []
    for _, group in groupby(results, lambda result: result.workload.name):
        rows += _of_workload(merged(group))
    return rows


def merged(results: Iterable[Result]) -> list[Result]:
    """One result for each candidate, with the rounds of all its heats."""
    found: dict[str, Result] = {}
    for result in results:
        name = result.candidate.name
        before = found.get(name, result)
        found[name] = replace(
            result, seconds=before.seconds | result.seconds, ready=before.ready, failed=before.failed or result.failed
        )
    return list(found.values())


def _of_workload(results: Sequence[Result]) -> list[Standing]:
    ran = [result for result in results if result.seconds and not result.failed]
    best = {kind: next(iter(rivals(ran, kind)), None) for result in ran for kind in result.candidate.kinds}
    rows = [
        _standing(
            result,
            limit_of(ran, result.seconds),
            None if result.candidate.is_limit else best.get(result.candidate.kinds[0]),
            base_of(ran),
        )
        for result in results
    ]
    kinds = list(dict.fromkeys(row.candidate.kinds[0] for row in rows))
    return sorted(rows, key=lambda row: _place(row, kinds))


def _place(row: Standing, kinds: Sequence[str]) -> tuple[bool, int, float]:
    seconds = row.seconds.middle if row.seconds else np.inf
    return row.candidate.is_limit, kinds.index(row.candidate.kinds[0]), seconds


def limit_of(results: Iterable[Result], rounds: Iterable[tuple[int, int]]) -> float | None:
    """The most FLOPs or bytes a second that any library reached in these rounds, in the median."""
    rates = [
        result.ready["work"] / median(result.seconds[key] for key in common)
        for result in results
        if result.ready and result.candidate.is_limit and (common := result.seconds.keys() & set(rounds))
    ]
    return max(rates, default=None)


def base_of(results: Sequence[Result]) -> Seconds:
    """What those who were not alive together are compared through."""
    base = baseline([result.candidate for result in results])
    return next((result.seconds for result in results if result.candidate in base), {})


def best_peers(results: Sequence[Result], kind: str) -> list[Result]:
    """Those of a kind that are not ours, the fastest first; of any kind, if there are none."""
    base = base_of(results)
    peers = [result for result in results if not (result.candidate.ours or result.candidate.is_limit)]
    peers = [peer for peer in peers if kind in peer.candidate.kinds] or peers
    return sorted(peers, key=lambda peer: -median(ratios(peer.seconds, base, base)))


def rivals(results: Sequence[Result], kind: str) -> list[Result]:
    """The best peers of a kind; where ours of that kind ran in a final, of those who did so beside them."""
    peers = best_peers(results, kind)
    final = {key for ours in _ours(results, kind) for key in ours.seconds if key[0] < 0}
    return [peer for peer in peers if peer.seconds.keys() & final] or peers


def finals(results: Sequence[Result], memory: float) -> list[list[Candidate]]:
    """For each kind ours and the best peers, who may have run in heats of their own, side by side: with the limits
    and the baseline, as in a heat, and with fewer peers where all would not fit into `memory`."""
    ran = [result for result in merged(results) if result.seconds and not result.failed]
    base = baseline([result.candidate for result in ran])
    always = [result for result in ran if result.candidate.is_limit or result.candidate in base]
    groups = []
    for kind in dict.fromkeys(result.candidate.kinds[0] for result in ran if result.candidate.ours):
        peers = [peer for peer in best_peers(ran, kind)[:FINALISTS] if peer not in always]
        group = [*always, *_ours(ran, kind), *peers]
        while len(peers) > 1 and sum(each.ready["peak_bytes"] for each in group if each.ready) > memory:
            peers.pop()
            group.pop()
        groups.append([each.candidate for each in group])
    return groups


def _ours(results: Iterable[Result], kind: str) -> list[Result]:
    return [result for result in results if result.candidate.ours and result.candidate.kinds[0] == kind]


def ratios(mine: Seconds, theirs: Seconds, base: Seconds) -> list[float]:
    """How many times as fast as theirs mine is, round by round; without a round in common, by way of `base`, which
    has rounds in common with both."""
    if common := mine.keys() & theirs.keys():
        return [theirs[key] / mine[key] for key in common]
    through = median(theirs[key] / base[key] for key in theirs.keys() & base.keys())
    return [base[key] / mine[key] * through for key in mine.keys() & base.keys()]


def _standing(result: Result, limit: float | None, rival: Result | None, base: Seconds) -> Standing:
    candidate, workload, ready = result.candidate, result.workload, result.ready or {}
    row = Standing(
        candidate, workload, None, 0, (), None, None, None, None, None, _conformity(result), result.failed, ready
    )
    if result.failed or not result.seconds:
        return row
    seconds = list(result.seconds.values())
    work = ready["work"] or (workload.bytes_read if workload.kind == "decode" else workload.flops)
    per_second = Quartiles.of(work / each for each in seconds)
    return replace(
        row,
        seconds=Quartiles.of(seconds),
        rounds=len(seconds),
        heats=tuple(sorted({heat for heat, _ in result.seconds})),
        tokens_per_second=None if candidate.is_limit else Quartiles.of(workload.tokens / each for each in seconds),
        per_second=per_second,
        share=per_second.times(1 / limit) if limit else None,
        ratio=Quartiles.of(ratios(result.seconds, rival.seconds, base)) if rival else None,
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
        "heats": row.heats,
        "gflops_per_second": row.gflops,
        "best_peer": row.rival,
        "conformity": row.ready.get("conformity") or row.conformity,
        "failed": row.failed,
        "environment": row.candidate.environment,
        **{name: row.ready.get(name) for name in ("import_seconds", "build_seconds", "first_seconds", "peak_bytes")},
    }
