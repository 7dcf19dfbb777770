"""Run a port on several ranks, with one process per rank; the rest of the checker uses the group like a single port."""

import functools
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from transparity_conformance.capabilities.port_calls import PortCallError, PortError, PortProcessError
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process import requests
from transparity_conformance.running.process.child import PortProcess, PortTimeoutError
from transparity_conformance.running.process.joining import Differing, RankHandle, Whole, handle_of
from transparity_conformance.running.process.wire import Handle, with_handles


class ProcessGroup:
    """The processes of a port, one per rank, which answer every request together within `timeout` seconds. `adapter` is
    the path of an adapter; empty for a model that keeps its own weights; None for a `build` or a loader. If
    `is_launched` is true, the port is distributed: each process gets the environment variables of a rank, and answers
    are joined. If `is_small` is true, all models are small: the processes use one thread, and XLA skips its slow
    passes. `environment` contains additional environment variables."""

    def __init__(
        self,
        spec: str,
        timeout: float,
        adapter: str | None = None,
        ranks: int = 1,
        *,
        is_launched: bool,
        is_small: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.ranks, self.spec, self.adapter, self.is_launched = ranks, spec, adapter, is_launched
        self.processes = [
            PortProcess(
                spec,
                timeout,
                adapter,
                {**of_rank, **(environment or {})},
                "The port" if ranks == 1 else f"Rank {rank} of {ranks}",
                is_small=is_small,
            )
            for rank, of_rank in enumerate(environments(ranks) if is_launched else [{}])
        ]
        self.differing, self.whole = Differing(), Whole()
        self._loaded: tuple[Handle, Any] | None = None
        self.alone: ProcessGroup | None = None
        """A group with a single rank that runs the same code; the checker compares the results of this group with
        several ranks."""

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
        if self.alone is not None:
            self.alone.stop()

    def load(self, spec: str) -> None:
        self.loaded()
        for process in self.processes:
            process.ask(requests.load, spec, self.adapter, {})
        self.spec, self._loaded = spec, None
        self.differing = Differing()
        self.loaded()
        if self.alone is not None:
            self.alone.load(spec)

    @property
    def is_running(self) -> bool:
        return all(process.is_running for process in self.processes)

    def processor_seconds(self) -> float | None:
        alone = [] if self.alone is None else self.alone.processes
        known = [process.processor_seconds() for process in (*self.processes, *alone)]
        return None if None in known else sum(filter(None, known))

    def loaded(self) -> tuple[Handle, Any]:
        """Return the handle and the signature of the port's function; raise `LoadError` if loading fails."""
        if self._loaded is None:
            try:
                answers = self._together("loading the port")
            except PortCallError as error:
                raise LoadError(f"The port cannot be loaded: it raised {error}.") from None
            self._loaded = handle_of([handle for handle, _ in answers]), answers[0][1]
        return self._loaded

    def answers(
        self,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        largest: int | None = None,
        kind: type = object,
    ) -> list[Any]:
        """Call a function in all processes, and return the answers by rank; messages call the request `what`. An answer
        has at most `largest` bytes. If an answer is not of the right `kind`, stop the processes and raise
        `PortProcessError`."""
        self.loaded()
        self.differing.last = {}
        for rank, process in enumerate(self.processes):
            own = lambda handle, rank=rank: handle.handles[rank] if isinstance(handle, RankHandle) else handle
            given = with_handles(arguments, own) if self.is_launched else arguments
            process.ask(function, *given, largest=largest)
        found = self._together(what)
        if not all(isinstance(each, kind) for each in found):
            self.stop()
            raise PortProcessError("The port's process sent a malformed record of its operations.")
        return found

    def _together(self, what: str) -> list[Any]:
        """Return the answers by rank; receive them in any order, because a rank may wait for another rank."""
        try:
            return answers_to(self.processes, what)
        except PortCallError:  # no process has ended
            raise
        except BaseException:
            self.stop()
            raise

    def folder(self) -> str:
        return self.processes[0].folder()


def isolated_of(build: Callable[..., Any]) -> Any:
    return isolated_of(build.func) if isinstance(build, functools.partial) else build


def ranks_of(build: Callable[..., Any]) -> int:
    group = group_of(build)
    return 1 if group is None else group.ranks


def group_of(build: Callable[..., Any]) -> ProcessGroup | None:
    process = getattr(isolated_of(build), "process", None)
    return process if isinstance(process, ProcessGroup) and process.is_launched else None


def processor_seconds(build: Callable[..., Any]) -> float | None:
    process = getattr(isolated_of(build), "process", None)
    return process.processor_seconds() if isinstance(process, ProcessGroup) else None


ADDRESS = "127.0.0.1"

LOCAL = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}
"""Default environment variables of a rank: one thread, as with `torchrun`, and collectives over `lo`."""


def environments(ranks: int) -> list[dict[str, str]]:
    with socket.socket() as one, socket.socket() as other:  # two free ports
        for each in (one, other):
            each.bind((ADDRESS, 0))
        torch_port, jax_port = (each.getsockname()[1] for each in (one, other))
    of_all = {name: value for name, value in LOCAL.items() if name not in os.environ} | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(torch_port),
        "JAX_COORDINATOR_ADDRESS": f"{ADDRESS}:{jax_port}",
        "GROUP_RANK": "0",
    }
    return [of_all | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


WAITS = 5.0
"""After a rank has failed, the other ranks get this number of seconds, plus the time that the failed rank took."""

PATIENCE = 0.5
"""The seconds without an answer after which the checker tests whether the processes still run."""


def answers_to(processes: Sequence[PortProcess], what: str) -> list[Any]:
    """Receive the answers of all ranks to one request. If a rank failed, raise the error that best explains the
    failure. After a failure, give the other ranks little more time, because they may wait for the failed rank."""
    began, deserted_at, waiting = time.monotonic(), math.inf, dict(enumerate(processes))
    deadline, found, errors = began + processes[0].timeout, dict[int, Any](), dict[int, PortError]()
    while waiting and time.monotonic() < deserted_at:
        ready = wait([each.connection for each in waiting.values() if each.is_running], PATIENCE)
        for rank, process in list(waiting.items()):
            if process.connection not in ready and process.is_running and time.monotonic() < deadline:
                continue
            del waiting[rank]
            try:
                found[rank] = process.received(what, deadline)
            except PortError as error:
                errors[rank] = error
                deserted_at = min(deserted_at, 2 * time.monotonic() - began + WAITS)
    if errors:
        raise errors[0] if len(processes) == 1 else _best(errors, processes, what, found, waiting)
    return [answer for _, answer in sorted(found.items())]


def _best(
    errors: Mapping[int, PortError],
    processes: Sequence[PortProcess],
    what: str,
    found: Collection[int],
    waiting: Collection[int],
) -> PortError:
    count, seconds = len(processes), processes[0].timeout
    timeouts = [rank for rank, error in errors.items() if isinstance(error, PortTimeoutError)]
    ended = [r for r, error in errors.items() if isinstance(error, PortProcessError) and r not in timeouts]
    if ended:
        return errors[ended[0]]
    if timeouts:
        others = f" ({_named(found)} answered)" if found else ""
        return PortTimeoutError(
            f"{_named(timeouts).capitalize()} of {count} did not finish {what} within {seconds:g} s{others}; all ranks "
            "were stopped: raise --timeout, or make every rank enter each collective."
        )
    rank, error = next(iter(errors.items()))
    if not isinstance(error, PortCallError):
        return error
    if waiting:
        said = f"while {_named(waiting)} waited; all ranks were stopped"
        return PortProcessError(f"Rank {rank} of {count} raised {error} during {what}, {said}.")
    return PortCallError(str(error) if len(errors) == count else f"on rank {rank} of {count}: {error}")


def _named(ranks: Iterable[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
