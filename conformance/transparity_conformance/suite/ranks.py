"""A `transparity.protocol.Backend` on several ranks: every rank is called, and all must return the same result.

The processes of ranks start once, with a launcher's environment variables, and then run many tasks.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import itertools
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.protocol import Arrays, Backend, ShardedHarness
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.process.ranks import Processes, environments

PATIENCE = 120.0
"""The seconds for a rank's reply; a stopped rank makes the others wait in collective operations."""

ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Variables that hide GPUs: there is rarely a GPU for each rank."""

Task = Callable[..., Any]
"""A function at module level of a rank's state and other arguments."""


class State:
    """The objects of a rank, which its tasks share."""

    def __init__(self, module: str) -> None:
        self.module, self.rank = module, int(os.environ["RANK"])
        self.objects: dict[Any, Any] = {}

    def do(self, module: str, name: str, given: tuple[Any, ...]) -> Any:
        return getattr(importlib.import_module(module), name)(self, *given)


class RanksError(RuntimeError):
    """Error for ranks that return different results."""


class Ranks(Processes):
    """The processes of one launch, on the CPU; every process runs every task.

    Args:
        module: The module of the backend for ranks.
        count: The number of processes.
        devices: The number of devices that XLA simulates on the CPU for each process.
    """

    def __init__(self, module: str, count: int, devices: int, timeout: float = PATIENCE) -> None:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        ours = {"XLA_FLAGS": flags.strip(), "PYTHONPATH": os.pathsep.join(sys.path), **ON_THE_CPU}
        super().__init__(f"{__name__}:State", timeout, None, [each | ours for each in environments(count)])
        (state, _), *_ = self.together("loading its state")
        self.state = self.asked("making its state", "call", state, "", (module,), {})[0].number

    def do(self, task: Task, *given: Any) -> list[Any]:
        """Return the results of all ranks, as numbers, texts, arrays, and containers of these.

        Raise `PortCallError` with the message of a rank's exception, or `PortProcessError` if a rank has ended.
        """
        spec = sys.modules[task.__module__].__spec__  # `python -m` calls the module __main__
        module = task.__module__ if spec is None else spec.name
        return self.asked(task.__name__, "call", self.state, "do", (module, task.__name__, given), {})


MOST_RANKS = 4
"""The number of launched ranks; a smaller mesh uses the first ranks, so all meshes share one launch."""

HANDLES = itertools.count()
LAUNCHED: dict[str, Ranks] = {}


def launched(parts: ShardedHarness) -> Ranks:
    """Return the ranks of a column; launch them if necessary."""
    module = parts.SHARDED
    if module not in LAUNCHED or not LAUNCHED[module].is_running:
        LAUNCHED[module] = Ranks(module, parts.processes(MOST_RANKS), devices=MOST_RANKS)
    return LAUNCHED[module]


class RemoteBackend:
    """A backend on a mesh of data × tensor ranks, made from the backend in this process and its harness."""

    def __init__(self, local: Backend, parts: ShardedHarness, data: int, tensor: int) -> None:
        self.name, self.dtypes, self.modes, self.devices = local.name, local.dtypes, local.modes, local.devices
        self.parts, self.mesh = parts, (data, tensor)

    def __call__(self, config: TransformerConfig, parameters: Arrays, **how: Any) -> RemoteForward:
        how.pop("mode", None)  # a mesh has only one mode
        return self._made("__call__", config, dict(parameters), **how)

    def from_file(self, config: TransformerConfig, path: str, dtype: str) -> RemoteForward:
        """Build a model from a safetensors file; `{rank}` in its path is replaced by the number of each rank."""
        return self._made("from_file", config, path, dtype)

    def _made(self, method: str, *given: Any, **how: Any) -> RemoteForward:
        ranks, handle = launched(self.parts), next(HANDLES)
        ranks.do(_make, handle, self.mesh, method, given, how)
        return RemoteForward(ranks, handle)


class RemoteForward:
    """A `transparity.protocol.Forward` on ranks; caches stay on the ranks and are identified by numbers."""

    def __init__(self, ranks: Ranks, handle: int) -> None:
        self.ranks, self.handle = ranks, handle

    def __call__(self, **tokens: Any) -> Any:
        return self._ask("__call__", **tokens)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)
        return functools.partial(self._ask, method)

    def _ask(self, method: str, *given: Any, **named: Any) -> Any:
        return _agreed(method, self.ranks.do(_call, self.handle, next(HANDLES), method, given, named))


def _agreed(method: str, answers: list[Any]) -> Any:
    """Return the result of the first rank; raise `RanksError` if another rank has a different result."""
    results = [answer for answer in answers if answer is not None]
    if len({digest for digest, _ in results}) > 1:
        raise RanksError(f"{method}: ranks return different results")
    return results[0][1]


def _make(
    state: State, handle: int, mesh: tuple[int, int], method: str, given: tuple[Any, ...], how: dict[str, Any]
) -> None:
    """Build a model on this rank with a method of the backend; `{rank}` in a path becomes the number of the rank."""
    backend = _backend(state, mesh)
    if backend.takes_part:
        own = (each.format(rank=state.rank) if isinstance(each, str) else each for each in given)
        state.objects[handle] = getattr(backend, method)(*own, **how)


def _backend(state: State, mesh: tuple[int, int]) -> Any:
    """Return the backend on a mesh; all ranks must build it, including ranks outside the mesh."""
    if mesh not in state.objects:
        state.objects[mesh] = importlib.import_module(state.module).ShardedBackend(*mesh)
    return state.objects[mesh]


def _call(
    state: State, handle: int, kept: int, method: str, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[str, Any] | None:
    """Return the hash of a result and, from the first rank, the result; None for ranks outside the mesh.

    A cache in the result is stored on the rank and replaced by the number `kept`.
    """
    if handle not in state.objects:
        return None
    if method == "step" and len(given) > 1 and given[1] is not None:
        given = given[0], state.objects[given[1]]
    result = getattr(state.objects[handle], method)(*given, **named)
    if method == "step":
        logits, state.objects[kept] = result
        result = logits, kept
    result = _numbers(result)
    return hashlib.sha256(pickle.dumps(result)).hexdigest(), result if state.rank == 0 else None


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_numbers(held) for held in value)
    return np.ascontiguousarray(as_numbers(value)) if hasattr(value, "shape") else value
