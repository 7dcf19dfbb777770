"""Dropout on several ranks: shards drop their own entries, replicas the same ones.

A port may offer `with_dropout(**tokens)`, one forward pass as in training: a dict of taps. An entry that is 0 where the
reference's is not was dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.sharding import Placement, split
from transparity_conformance.checking.ranks.group import RankGroup
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, as_given
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report

METHOD, CLAIM = "with_dropout", "ranks.dropout"

FLUKE = 1e-6
"""Masks are of one seed if independent ones were the same with a smaller chance than this."""


def with_dropout(report: Report, group: RankGroup, forward: Any, probe: Probe) -> Report:
    """The report with what a port drops on each rank, if it offers that.

    Raises `PortError` if its method fails.
    """
    if not group.offers(forward, METHOD):
        return dataclasses.replace(report, not_compared=(*report.not_compared, f"{METHOD}: the port does not offer it"))
    tokens = {name: as_given(value) for name, value in probe.inputs.items()}
    answers = [dict(answer) for answer in group.answers_of(forward, METHOD, tokens)]
    names = [tap for tap in probe.oracle.expected if all(tap in answer for answer in answers)]
    sharding, found = group.sharding_of(forward.handle), []
    for tap in names:
        values = [np.asarray(answer[tap]) for answer in answers]
        found += [*_causes(tap, values, sharding.of(tap), probe.oracle.expected)]
    claim = ClaimResult(CLAIM, "diverges" if found else "agrees", float(bool(found)), 0.0, ", ".join(names[:1]))
    report = dataclasses.replace(report, claims=(*report.claims, claim))
    if not found:
        return report
    faults = tuple(Divergence(tap, 1.0, 0.0, (cause,), probe=probe.name) for tap, cause in found)
    first = report.first_divergence or faults[0].where
    return dataclasses.replace(report, verdict="diverges", first_divergence=first, faults=(*report.faults, *faults))


def _causes(
    tap: str, values: Sequence[np.ndarray], placement: Placement, expected: Mapping[str, np.ndarray] | Arrays
) -> Iterator[tuple[str, Cause]]:
    """What is wrong with the entries of a tap that each rank drops."""
    ranks = len(values)
    parts = split(expected[tap], placement, ranks)
    if placement.kind not in ("replicated", "sharded") or any(
        value.shape != part.shape for value, part in zip(values, parts, strict=True)
    ):
        return
    dropped = [(value == 0) & (part != 0) for value, part in zip(values, parts, strict=True)]
    for rank in range(1, ranks):
        if parts[0].shape != parts[rank].shape:
            continue
        both = (parts[0] != 0) & (parts[rank] != 0)
        same = bool(np.array_equal(dropped[0][both], dropped[rank][both]))
        if placement.kind == "replicated" and not same:
            says = f"ranks 0 and {rank} drop different entries of a value that is the same on all ranks"
            yield tap, Cause("dropout-on-replicas", says, None, 0.0, 1.0)
            return
        if placement.kind == "sharded" and same and _chance(dropped[0][both]) < FLUKE:
            says = f"ranks 0 and {rank} drop the same entries of their shards: their seeds are the same"
            yield tap, Cause("dropout-seed-shared", says, None, 0.0, 1.0)
            return


def _chance(dropped: np.ndarray) -> float:
    """The chance that an independent mask of the same rate is the same."""
    rate = float(dropped.mean()) if dropped.size else 0.0
    return float((rate**2 + (1 - rate) ** 2) ** dropped.size)
