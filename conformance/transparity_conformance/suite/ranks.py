"""Run a `transparity.protocol.Backend` on several ranks. All ranks must return the same result.

The processes start once, with the environment variables of a launcher such as torchrun, and then run many tasks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import importlib
import itertools
import multiprocessing
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.protocol import Arrays, Backend, ShardedHarness
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.process.ranks import environments

PATIENCE = 120.0
"""The seconds to wait for replies. If a rank has stopped, other ranks may wait forever in collective operations."""

AFTER_A_FAILURE = 2.0
"""The seconds to wait for the other ranks' replies after a rank has failed."""

ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Environment variables that hide GPUs, because a machine rarely has a GPU for each rank."""

Task = Callable[..., Any]
"""A function to run on a rank. Its arguments are the rank's state and other values; its result must be picklable."""


@dataclass
class State:
    module: str
    rank: int
    objects: dict[Any, Any] = field(default_factory=dict)


STATES: list[State] = []
"""The state of this process, if this process is a rank; otherwise empty."""


class RanksError(RuntimeError):
    """Raised if a rank has exited or does not reply, or if ranks return different results."""


class Ranks:
    """The processes of several ranks on the CPU; each process runs every task.

    Args:
        module: The name of the module with the sharded backend.
        count: The number of processes.
        devices: The number of devices that XLA simulates in each process.
    """

    def __init__(self, module: str, count: int, devices: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if count > 1 and "forkserver" in methods:
            multiprocessing.set_forkserver_preload([module])  # import the module once for all ranks
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        shared = {"XLA_FLAGS": flags.strip(), **ON_THE_CPU}
        self.pools = [
            ProcessPoolExecutor(1, context, _start, (State(module, rank), shared | own))
            for rank, own in enumerate(environments(count))
        ]
        self.alive = True
        self.processes = self.do(_process)
        atexit.register(self.stop)

    def do(self, task: Task, *given: Any) -> list[Any]:
        """Run a task on all ranks, and return the results. Raise a rank's error; if a rank does not reply, stop all."""
        if not self.alive:
            raise RanksError(f"{task.__name__}: an earlier failure ended the ranks")
        asked = [pool.submit(_run, task, given) for pool in self.pools]
        done = wait(asked, PATIENCE, FIRST_EXCEPTION).done
        failed = next((error for each in asked if each in done and (error := each.exception())), None)
        waiting = wait(asked, AFTER_A_FAILURE if failed else 0).not_done
        if waiting or isinstance(failed, BrokenProcessPool):
            self.stop()
        if isinstance(failed, BrokenProcessPool):
            raise RanksError(f"{task.__name__}: a rank has died") from None
        if failed is not None:
            raise failed
        if waiting:
            ranks = [rank for rank, each in enumerate(asked) if each in waiting]
            raise RanksError(f"{task.__name__}: ranks {ranks} do not answer")
        return [each.result() for each in asked]

    def stop(self) -> None:
        for number in self.processes if self.alive else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        for pool in self.pools:
            pool.shutdown()
        self.alive = False


def _start(state: State, variables: dict[str, str]) -> None:
    STATES[:] = [state]
    os.environ.update(variables)


def _run(task: Task, given: tuple[Any, ...]) -> Any:
    return task(*STATES, *given)


def _process(state: State) -> int:
    return os.getpid()


MOST_RANKS = 4
"""The number of launched ranks. A smaller mesh uses the first ranks, so a single launch is enough."""

HANDLES = itertools.count()
LAUNCHED: dict[str, Ranks] = {}


def launched(parts: ShardedHarness) -> Ranks:
    module = parts.SHARDED
    if module not in LAUNCHED or not LAUNCHED[module].alive:
        LAUNCHED[module] = Ranks(module, parts.processes(MOST_RANKS), devices=MOST_RANKS)
    return LAUNCHED[module]


class RemoteBackend:
    """A backend on a mesh of data × tensor ranks. `local` is the backend in this process, and `parts` its harness."""

    def __init__(self, local: Backend, parts: ShardedHarness, data: int, tensor: int) -> None:
        self.name, self.dtypes, self.modes, self.devices = local.name, local.dtypes, local.modes, local.devices
        self.parts, self.mesh = parts, (data, tensor)

    def __call__(self, config: TransformerConfig, parameters: Arrays, **how: Any) -> RemoteForward:
        how.pop("mode", None)  # a mesh has only one mode
        return self._made("__call__", config, dict(parameters), **how)

    def from_file(self, config: TransformerConfig, path: str, dtype: str) -> RemoteForward:
        return self._made("from_file", config, path, dtype)

    def _made(self, method: str, *given: Any, **how: Any) -> RemoteForward:
        ranks, handle = launched(self.parts), next(HANDLES)
        ranks.do(_make, handle, self.mesh, method, given, how)
        return RemoteForward(ranks, handle)


class RemoteForward:
    """A `transparity.protocol.Forward` on ranks. Caches stay on the ranks; the caller gets a number for each cache."""

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
    results = [answer for answer in answers if answer is not None]
    if len({digest for digest, _ in results}) > 1:
        raise RanksError(f"{method}: ranks return different results")
    return results[0][1]


def _make(
    state: State, handle: int, mesh: tuple[int, int], method: str, given: tuple[Any, ...], how: dict[str, Any]
) -> None:
    backend = _backend(state, mesh)
    if backend.takes_part:
        state.objects[handle] = getattr(backend, method)(*given, **how)


def _backend(state: State, mesh: tuple[int, int]) -> Any:
    """Return the backend on a mesh. All ranks must build the backend, even ranks outside of the mesh."""
    if mesh not in state.objects:
        state.objects[mesh] = importlib.import_module(state.module).ShardedBackend(*mesh)
    return state.objects[mesh]


def _call(
    state: State, handle: int, kept: int, method: str, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[str, Any] | None:
    """Call a method. Return a hash of the result, and the result on the first rank. Outside of the mesh, return None.

    If the result contains a cache, keep the cache on the rank, and return the number `kept` instead.
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
