"""Find the line and the tap at which two equal calls of a port diverge."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import recorded
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.report import Divergence, Report
from transparity_conformance.running.process.running import run_listening


def with_unsteady_line(report: Report, forward: Callable[..., Any], probe: Probe) -> Report:
    """Add the line and the tap where two calls diverge to the divergence of a nondeterministic port."""
    row = aligned_probe(probe)
    try:
        taps, once = run_listening(forward, row)
        _, again = run_listening(forward, row)
    except PortProcessError:
        raise
    except PortError as error:
        return report.adding(notes=[f"the port's operations could not be recorded: {error}"])
    pairs = itertools.zip_longest(once, again[: len(once)])
    parting = [index for index, (one, other) in enumerate(pairs) if other is None or not _is_same(one, other)]
    first, *others = report.faults
    if first.where == "logits" and not probe.is_large:
        first = _placed(first, parted_tap(row, once, parting, taps["logits"], report.dtype))
    source = next((once[index].source for index in parting if once[index].source is not None), None)
    if source is not None:
        first = dataclasses.replace(first, source=dataclasses.asdict(source))
    return dataclasses.replace(report, faults=(first, *others))


def _placed(divergence: Divergence, tap: str) -> Divergence:
    """Return the divergence with the tap at which its cause acts, if this tap is known."""
    if not tap:
        return divergence
    placed = (dataclasses.replace(each, says=f"{each.says}, at {tap}", at=tap) for each in divergence.causes)
    return dataclasses.replace(divergence, causes=tuple(placed))


def parted_tap(
    probe: Probe, operations: Sequence[Operation], parting: Sequence[int], answer: np.ndarray, dtype: str
) -> str:
    """Return the last right tap before two calls of the port diverge, or an empty string.

    Args:
        operations: the operations of a call on one row without padding.
        parting: the indices of the operations whose values differ in the other call.
        answer: the logits of the call.
        dtype: the precision of the port.
    """
    port = recorded(probe, operations, answer, dtype)
    unsteady = {*parting, len(operations)}
    equal = port.equal(walk(probe, {}), may_be=lambda index: index not in unsteady)
    steady = {match.index: tap for tap, match in equal.items()}
    for index in sorted(unsteady):  # Random numbers are drawn before they are combined with an activation.
        if before := [each for each in steady if port.leads_to(each, index)]:
            return steady[max(before)]
    return ""


def _is_same(one: Operation, other: Operation) -> bool:
    same_kind = one.name == other.name and one.value.shape == other.value.shape
    return same_kind and one.value.tobytes() == other.value.tobytes()
