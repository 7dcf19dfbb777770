"""Run a `transparity.protocol.Backend` on several ranks. All ranks must return the same result."""

from __future__ import annotations

import atexit
import functools
import hashlib
import importlib
import itertools
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
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
"""A function to run on a rank. The arguments are the rank's state and other values; the result must be picklable."""


@dataclass
class State:
    module: str
    rank: int
    objects: dict[Any, Any] = field(default_factory=dict)


class RanksError(RuntimeError):
    """Raised if a rank has exited or does not reply, or if ranks return different results."""


class Ranks:
    """The processes of several ranks on the CPU; each process runs every task. The sharded backend is in `module`. In
    each process, XLA simulates the given number of `devices`."""

    def __init__(self, module: str, count: int, devices: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if count > 1 and "forkserver" in methods:
            multiprocessing.set_forkserver_preload([module])  # import the module once for all ranks
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        self.connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank, variables in enumerate(environments(count)):
            ours, theirs = context.Pipe()
            variables |= {"XLA_FLAGS": flags.strip(), **ON_THE_CPU}
            process = context.Process(target=_serve, args=(theirs, State(module, rank), variables), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        return bool(self.processes) and all(process.is_alive() for process in self.processes)

    def do(self, task: Task, *given: Any) -> list[Any]:
        """Run a task on all ranks. Raise the error of a rank that fails; if a rank does not reply, stop all ranks."""
        if not self.connections:
            raise RanksError(f"{task.__name__}: an earlier failure ended the ranks")
        try:
            for connection in self.connections:
                connection.send((task, given))
            answers = self._answers()
        except (EOFError, OSError):
            self.stop()
            raise RanksError(f"{task.__name__}: a rank has died") from None
        if len(answers) < len(self.connections):
            waiting = sorted({*range(len(self.connections))} - {*answers})
            self.stop()
            answers.setdefault(waiting[0], (False, RanksError(f"{task.__name__}: ranks {waiting} do not answer")))
        errors = [value for done, value in answers.values() if not done]
        if errors:
            raise errors[0]
        return [answers[rank][1] for rank in sorted(answers)]

    def stop(self) -> None:
        for process in self.processes:
            if process.is_alive():  # another process may have the id of an ended process
                process.terminate()
            process.join()
        for connection in self.connections:
            connection.close()
        self.connections, self.processes = [], []

    def _answers(self) -> dict[int, tuple[bool, Any]]:
        """Return the replies that arrive in time; after a failure, wait only a short time for the other ranks."""
        answers: dict[int, tuple[bool, Any]] = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < len(self.connections) and (left := until - time.monotonic()) > 0:
            asked = {connection: rank for rank, connection in enumerate(self.connections) if rank not in answers}
            for connection in wait(list(asked), left):
                assert isinstance(connection, Connection)
                answers[asked[connection]] = done, _ = connection.recv()
                until = until if done else min(until, time.monotonic() + AFTER_A_FAILURE)
        return answers


def _serve(connection: Connection, state: State, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    while True:
        try:
            task, given = connection.recv()
        except EOFError:
            return
        try:
            answer = True, task(state, *given)
        except Exception as error:  # noqa: BLE001 - `do` raises it
            answer = False, _sendable(error)
        connection.send(answer)


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - any error of a framework
        return RanksError(f"{type(error).__name__}: {error}")
    return error


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
    If the result contains a cache, keep the cache on the rank, and return the number `kept` instead."""
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
