"""Run a `transparity.protocol.Backend` on several ranks. All ranks must return the same result."""

import functools
import importlib
import math
import os
import pickle
from collections.abc import Callable
from typing import Any

from transparity.config import TransformerConfig
from transparity.protocol import Arrays, Backend, ShardedHarness
from transparity_conformance.running.process.isolation import IsolatedBuild, RemotePort
from transparity_conformance.running.process.ranks import ProcessGroup
from transparity_conformance.running.process.wire import with_handles

TIMEOUT = 120.0
"""The seconds to wait for an answer of all ranks."""

MOST_RANKS = 4

ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Environment variables that hide GPUs, because a machine rarely has a GPU for each rank."""

LAUNCHED: dict[tuple[str, int], ProcessGroup] = {}


class RanksError(RuntimeError):
    """Ranks return different results."""


def launched(parts: ShardedHarness, ranks: int) -> ProcessGroup:
    key = parts.SHARDED, parts.processes(ranks)
    if key not in LAUNCHED or not LAUNCHED[key].is_running:
        LAUNCHED[key] = started(parts, ranks, f"{__name__}:build")
    return LAUNCHED[key]


def started(parts: ShardedHarness, ranks: int, spec: str) -> ProcessGroup:
    """Start processes on the CPU that load the port `spec`. In each process, XLA simulates `MOST_RANKS` devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={MOST_RANKS}"
    environment = {"XLA_FLAGS": flags.strip(), **ON_THE_CPU}
    return ProcessGroup(spec, TIMEOUT, ranks=parts.processes(ranks), is_launched=True, environment=environment)


def build(config: TransformerConfig, parameters: Any, *, module: str, mesh: tuple[int, int], **how: Any) -> Any:
    """Build a model on this rank; `parameters` may be the path of a file."""
    backend = sharded_backend(module, mesh)
    return (backend.from_file if isinstance(parameters, str) else backend)(config, parameters, **how)


@functools.cache
def sharded_backend(module: str, mesh: tuple[int, int]) -> Any:
    return importlib.import_module(module).ShardedBackend(*mesh)


class RemoteBackend:
    """A backend on a mesh of data × tensor ranks. `local` is the backend in this process, and `parts` its harness."""

    def __init__(self, local: Backend, parts: ShardedHarness, data: int, tensor: int) -> None:
        self.name, self.dtypes, self.modes, self.devices = local.name, local.dtypes, local.modes, local.devices
        self.parts, self.mesh = parts, (data, tensor)

    def __call__(self, config: TransformerConfig, parameters: Arrays, **how: Any) -> "RemoteForward":
        how.pop("mode", None)  # a mesh has only one mode
        return self._built(config, dict(parameters), **how)

    def from_file(self, config: TransformerConfig, path: str, dtype: str) -> "RemoteForward":
        return self._built(config, path, dtype=dtype)

    def _built(self, *given: Any, **how: Any) -> "RemoteForward":
        make = IsolatedBuild(launched(self.parts, min(math.prod(self.mesh), MOST_RANKS)))
        return RemoteForward(make(*given, module=self.parts.SHARDED, mesh=self.mesh, **how))


class RemoteForward:
    """A `transparity.protocol.Forward` on ranks. Caches stay on the ranks."""

    def __init__(self, port: RemotePort) -> None:
        self.port = port

    def __call__(self, **tokens: Any) -> Any:
        return self._ask("__call__", **tokens)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return functools.partial(self._ask, method)

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        answers = self.port.answers_by_rank(method, *given, **named)
        if len({pickle.dumps(with_handles(each, lambda handle: handle.kind)) for each in answers}) > 1:
            raise RanksError(f"{method}: ranks return different results")
        return self.port.joined(method, answers)
