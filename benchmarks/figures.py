"""The figures of a benchmark: speed from its median time, and what the speed depends on."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import Case
from benchmarks.flops import forward_flops

from transparity_conformance.oracle.backends import harness
from transparity_conformance.report.comparison import Evidence

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "XLA_FLAGS")


@dataclass(frozen=True)
class Figures:
    """One row of the table."""

    case: Case
    evidence: Evidence
    seconds: float
    """The median of a forward pass."""

    @property
    def tokens(self) -> int:
        """Tokens whose logits are computed: batch × output length. Those of a source are not counted."""
        return self.case.batch * self.case.length

    @property
    def flops(self) -> int:
        """The FLOPs of one forward pass (`benchmarks.flops` says what is counted)."""
        config = self.case.workload.config
        return forward_flops(config, self.case.batch, **dict.fromkeys(config.input_names, self.case.length))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    @property
    def gflops_per_second(self) -> float:
        return self.flops / self.seconds / 1e9

    def as_dict(self) -> dict[str, Any]:
        """JSON values, for pytest-benchmark's `extra_info`."""
        case, names, evidence = self.case, self.case.workload.config.input_names, self.evidence
        return dataclasses.asdict(case) | {
            "lengths": dict.fromkeys(names, case.length),
            "tokens": self.tokens,
            "source_tokens": self.tokens if "source" in names else 0,
            "flops": self.flops,
            "tokens_per_second": self.tokens_per_second,
            "gflops_per_second": self.gflops_per_second,
            "conformity": {"error": evidence.error, "budget": evidence.budget, "share": evidence.share},
        }


class Clock:
    """How many cores a stretch of time kept busy."""

    cores_busy = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        wall, cores = time.perf_counter(), time.process_time()
        yield
        self.cores_busy = round((time.process_time() - cores) / (time.perf_counter() - wall), 2)


def threads(cores_busy: float, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The cores at hand, how many of them were kept busy, and what the environment says about threads."""
    at_hand = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    said = {name: environment.get(name, "not set") for name in THREAD_VARIABLES}
    return {"cores": at_hand, "cores_busy": cores_busy} | said


def surroundings(case: Case) -> dict[str, str]:
    """The versions, the device's name and the precision of its matrix products, as the backend says them."""
    parts = harness(case.backend)
    return parts.describe(case.device) if parts else {}
