"""The line of a port that makes other numbers the second time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.listening.operation import Operation
from transparity_conformance.ports.process.running import run_listening
from transparity_conformance.report.report import Report


def with_unsteady_line(report: Report, forward: Callable[..., Any], probe: Probe) -> Report:
    """Add to the divergence of a port that answers the same tokens differently the line where two calls part."""
    try:
        _, once = run_listening(forward, probe)
        _, again = run_listening(forward, probe)
    except PortProcessError:
        raise
    except PortError as error:
        return dataclasses.replace(report, notes=(*report.notes, f"the port could not be listened to: {error}"))
    parting = (one for one, other in zip(once, again, strict=False) if not _is_same(one, other))
    source = next((each.source for each in parting if each.source is not None), None)
    if source is None:
        return report
    first, *others = report.faults
    found = dataclasses.replace(first, source=dataclasses.asdict(source))
    return dataclasses.replace(report, faults=(found, *others))


def _is_same(one: Operation, other: Operation) -> bool:
    same_kind = one.name == other.name and one.value.shape == other.value.shape
    return same_kind and one.value.tobytes() == other.value.tobytes()
