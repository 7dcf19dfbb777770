"""The cases of `pytest --benchmark`: every installed backend, on every device at hand, with every preset and shape."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from benchmarks.workloads import Workload, preset_shapes, preset_workload

from transparity_conformance.oracle.backends import backend, named
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence

DTYPE = "float32"
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Case:
    """One benchmark: a backend on a device, and the shape of a preset's inputs."""

    backend: str
    mode: str
    dtype: str
    device: str
    preset: str
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.backend}-{self.mode}-{self.dtype}-{self.device}-{self.workload}"

    @property
    def subject(self) -> BackendSubject:
        return BackendSubject(self.backend, self.dtype, self.device, self.mode)

    @property
    def workload(self) -> Workload:
        return preset_workload(self.preset, self.batch, self.length)

    @classmethod
    def fields(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]


def cases(*, all_modes: bool = False, device: str | None = None) -> list[Case]:
    """The benchmarks; those of one workload follow each other, for they share its oracle."""
    found = [subject for subject in subjects(all_modes=all_modes) if device in (None, subject.device)]
    return [
        Case(subject.backend, subject.mode, subject.dtype, subject.device, *shape)
        for shape, subject in product(preset_shapes(), found)
    ]


def subjects(*, all_modes: bool = False) -> Iterator[BackendSubject]:
    """Every backend in its first mode (or each of its modes) on each of its devices."""
    for name in named():
        if why_missing(name) is None:
            build = backend(name)
            for device, mode in product(build.devices(), build.modes if all_modes else build.modes[:1]):
                yield BackendSubject(name, DTYPE, device, mode)


def missing() -> list[str]:
    """The backends and devices that this session cannot time, each with its reason."""
    lines = []
    for name in named():
        if reason := why_missing(name):
            lines.append(f"{name}: {reason}")
        else:
            devices = backend(name).devices()
            reason = f"it is not among its devices here ({', '.join(devices)})"
            lines += [f"{name} on {device}: {reason}" for device in DEVICES if device not in devices]
    return lines


def why_missing(name: str) -> str | None:
    """The reason that a backend cannot be timed at all, or None."""
    try:
        dtypes = backend(name).dtypes
    except ImportError as error:
        return f"it cannot be imported ({error})"
    return None if DTYPE in dtypes else f"it offers no {DTYPE}"


def figures(case: Case, evidence: ClaimEvidence, seconds: float) -> dict[str, Any]:
    """The figures of a case as JSON values, from its evidence and the median of its forward passes."""
    workload = case.workload
    return dataclasses.asdict(case) | {
        "lengths": workload.lengths,
        "tokens": workload.tokens,
        "source_tokens": workload.tokens if "source" in workload.lengths else 0,
        "flops": workload.flops,
        "tokens_per_second": workload.tokens / seconds,
        "gflops_per_second": workload.flops / seconds / 1e9,
        "conformity": {"error": evidence.error, "budget": evidence.budget, "share": evidence.share},
    }
