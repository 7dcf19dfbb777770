"""What is timed: every backend that is installed, on every device at hand, with every preset, on a grid of shapes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.backends import backend, named
from transparity_conformance.report.comparison import Subject

BATCHES, LENGTHS = (1, 8), (32, 64)
DTYPE = "float32"
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Workload:
    """A preset at its document's size, and the shape of each of its inputs."""

    preset: str
    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.preset}-{self.batch}x{self.length}"

    @property
    def config(self) -> TransformerConfig:
        return preset(self.preset)


@dataclass(frozen=True)
class Case:
    """One benchmark: who computes, and what."""

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
    def subject(self) -> Subject:
        return Subject(self.backend, self.dtype, self.device, self.mode)

    @property
    def workload(self) -> Workload:
        return Workload(self.preset, self.batch, self.length)

    @classmethod
    def fields(cls) -> list[str]:
        return [field.name for field in dataclasses.fields(cls)]


def cases(*, all_modes: bool = False) -> list[Case]:
    """The benchmarks, those of one workload side by side: they share its oracle, and are read together."""
    who = list(subjects(all_modes=all_modes))
    return [
        Case(s.backend, s.mode, s.dtype, s.device, w.preset, w.batch, w.length) for w, s in product(workloads(), who)
    ]


def workloads() -> list[Workload]:
    """Every preset with every shape, no longer than its `max_length`."""
    return [Workload(name, *shape) for name in PRESETS for shape in shapes(preset(name))]


def shapes(config: TransformerConfig) -> list[tuple[int, int]]:
    """(batch, length), with what is too long for the model as long as it can be, once."""
    return list(dict.fromkeys((batch, min(length, config.max_length)) for batch, length in product(BATCHES, LENGTHS)))


def subjects(*, all_modes: bool = False) -> Iterator[Subject]:
    """Every backend in its first mode (or each of its modes) on each of its devices."""
    for name in named():
        if why_absent(name) is None:
            build = backend(name)
            for device, mode in product(build.devices(), build.modes if all_modes else build.modes[:1]):
                yield Subject(name, DTYPE, device, mode)


def absent() -> list[str]:
    """What this session cannot time, each with its reason, so that nothing is left out in silence."""
    lines = []
    for name in named():
        if reason := why_absent(name):
            lines.append(f"{name}: {reason}")
        else:
            devices = backend(name).devices()
            says = f"it is not among its devices here ({', '.join(devices)})"
            lines += [f"{name} on {device}: {says}" for device in DEVICES if device not in devices]
    return lines


def why_absent(name: str) -> str | None:
    """Why a backend that is named cannot be timed at all, or None."""
    try:
        dtypes = backend(name).dtypes
    except ImportError as error:
        return f"it cannot be imported ({error})"
    return None if DTYPE in dtypes else f"it offers no {DTYPE}"
