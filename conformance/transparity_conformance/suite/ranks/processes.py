"""The processes of ranks: started once, with the environment variables of a launcher, then used for many tasks."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pickle
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

PATIENCE = 120.0
"""The seconds within which every rank must reply; a stopped rank makes the others wait in collective operations."""

AFTER_A_FAILURE = 2.0
"""The seconds within which the other ranks must reply after a rank has failed."""

ON_THE_CPU = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
"""Variables that hide GPUs, because there is rarely a GPU for each rank."""

Task = Callable[..., Any]
"""A function at module level: from the state of a rank and other arguments, it computes a result that can be
pickled."""


@dataclass
class State:
    """The state that a rank keeps between tasks."""

    module: str
    """The module of the backend for ranks."""
    rank: int
    objects: dict[Any, Any] = field(default_factory=dict)


class RanksError(RuntimeError):
    """Ranks have exited, do not reply, or return different results."""


class Ranks:
    """The processes of one launch, on the CPU; every process runs every task.

    Args:
        module: The module of the backend for ranks.
        count: The number of processes.
        devices: The number of devices that XLA simulates on the CPU for each process.
    """

    def __init__(self, module: str, count: int, devices: int) -> None:
        methods = multiprocessing.get_all_start_methods()
        context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if count > 1 and "forkserver" in methods:
            multiprocessing.set_forkserver_preload([module])  # the module is imported once for all ranks
        variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        self.connections: list[Connection] = []
        self.processes: list[BaseProcess] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            named = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank), "XLA_FLAGS": flags.strip(), **ON_THE_CPU}
            process = context.Process(target=_serve, args=(theirs, State(module, rank), named), daemon=True)
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)
        atexit.register(self.stop)

    @property
    def alive(self) -> bool:
        return bool(self.processes) and all(process.is_alive() for process in self.processes)

    def do(self, task: Task, *given: Any) -> list[Any]:
        """Return the results of all ranks, or raise the first error of a rank.

        Raise `RanksError` if a rank exits or does not reply; all ranks are then stopped.
        """
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
            if process.is_alive():  # the id of an ended process may belong to another one
                process.terminate()
            process.join()
        for connection in self.connections:
            connection.close()
        self.connections, self.processes = [], []

    def _answers(self) -> dict[int, tuple[bool, Any]]:
        """Return the replies that arrive in time; after a rank has failed, the others get only a short time."""
        answers: dict[int, tuple[bool, Any]] = {}
        until = time.monotonic() + PATIENCE
        while len(answers) < len(self.connections) and (left := until - time.monotonic()) > 0:
            asked = {connection: rank for rank, connection in enumerate(self.connections) if rank not in answers}
            for connection in wait(list(asked), left):
                assert isinstance(connection, Connection)
                answers[asked[connection]] = done, _ = connection.recv()
                until = until if done else min(until, time.monotonic() + AFTER_A_FAILURE)
        return answers


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


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
    """Return an error that can be pickled, of the same class if possible."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - any error of a framework
        return RanksError(f"{type(error).__name__}: {error}")
    return error
