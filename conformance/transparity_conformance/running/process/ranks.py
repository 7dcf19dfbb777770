"""Run a port on several ranks, with one process per rank; the rest of the checker uses the group like a single port."""

import functools
import math
import os
import socket
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, PortProcessError
from transparity_conformance.capabilities.sharding import ALONE, Sharding, read_placements
from transparity_conformance.running.inputs import shapes_of
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process.child import PortProcess, PortTimeoutError
from transparity_conformance.running.process.joining import Differing, RankHandle, Shapes, Whole, joined
from transparity_conformance.running.process.wire import Handle, Recorded, with_handles


class ProcessGroup:
    """The processes of a port, one per rank, which answer every request together within `timeout` seconds. `adapter` is
    the path of an adapter; empty for a model that keeps its own weights; None for a `build` or a loader. If
    `is_launched` is true, the port is distributed: each process gets the environment variables of a rank, and answers
    are joined. If `is_small` is true, all models are small: the processes use one thread, and XLA skips its slow
    passes."""

    def __init__(
        self,
        spec: str,
        timeout: float,
        adapter: str | None,
        ranks: int = 1,
        *,
        is_launched: bool,
        is_small: bool = False,
    ) -> None:
        self.ranks, self.spec, self.adapter, self.is_launched = ranks, spec, adapter, is_launched
        shared = functools.partial(PortProcess, spec, timeout, adapter, is_small=is_small)
        self.processes = [
            shared(environment, "The port" if ranks == 1 else f"Rank {rank} of {ranks}")
            for rank, environment in enumerate(environments(ranks) if is_launched else [{}])
        ]
        self.differing, self.whole = Differing(), Whole()
        self.shardings: dict[int, Sharding] = {}
        self.configs: dict[int, TransformerConfig] = {}
        self._loaded: tuple[Any, Any] | None = None
        self.alone = ProcessGroup(spec, timeout, adapter, is_launched=True, is_small=is_small) if ranks > 1 else None
        """A group of one rank that runs the same code, to compare several ranks with a single rank."""

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
        if self.alone is not None:
            self.alone.stop()

    def load(self, spec: str) -> None:
        self.loaded()
        for process in self.processes:
            process.ask("load", spec, self.adapter, {})
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

    def loaded(self) -> tuple[int, Any]:
        """Return the handle number and the signature of the port's function; raise `LoadError` if loading fails."""
        if self._loaded is None:
            try:
                answers = self._together("loading the port")
            except PortCallError as error:
                raise LoadError(f"The port cannot be loaded: it raised {error}.") from None
            self._loaded = answers[0][0], answers[0][1]
        return self._loaded

    def answer(self, what: str, name: str, *arguments: Any, largest: int | None = None, kind: type = object) -> Any:
        """Send a request, called `what` in messages, to all ranks. The joined answer has at most `largest` bytes. If an
        answer is not of the right `kind`, stop the processes and raise `PortProcessError`."""
        self.loaded()
        self.differing.last = {}
        answers = self._asked(what, name, *arguments, largest=largest)
        if not all(isinstance(each, kind) for each in answers):
            self.stop()
            raise PortProcessError("The port's process sent a malformed record of its operations.")
        if not self.is_launched:
            return answers[0]
        if name == "build":
            return self._built(answers, arguments)
        if name == "listen":
            result = self._joined(what, [each.result for each in answers], arguments)
            return Recorded(result, self.whole.of(int(arguments[0]), [each.operations for each in answers]))
        return self._joined(what, answers, arguments) if name == "call" else answers[0]

    def _built(self, answers: Sequence[Any], arguments: Sequence[Any]) -> Any:
        numbers = [answer[0] for answer in answers]
        if None in numbers:
            return answers[numbers.index(None)]
        if len(set(numbers)) > 1:
            raise PortProcessError(
                f"The ranks built different numbers of models ({numbers}); expected the same calls on every rank."
            )
        number = int(numbers[0])
        declared = self._asked("the request for its placements", "placements", number)
        for rank, each in enumerate(declared):
            if each != declared[0]:
                raise PortError(f"Ranks 0 and {rank} declare different placements; expected the same on every rank.")
        self.shardings[number] = Sharding(self.ranks, read_placements(declared[0], self.ranks))
        self.configs[number] = arguments[1][0]
        return answers[0]

    def _joined(self, what: str, answers: Sequence[Any], arguments: Sequence[Any]) -> Any:
        number = int(arguments[0])
        method = arguments[1] if isinstance(arguments[1], str) and arguments[1] else what
        tokens = next((each for each in arguments[1:] if isinstance(each, Mapping)), {})
        config, shapes = self.configs.get(number), Shapes()
        if config is not None and what != "forward":
            shapes = parameter_shapes(config)
        elif config is not None and tokens:
            shapes = shapes_of(config, tokens)
        return joined(method, answers, self.shardings.get(number, Sharding(self.ranks)), shapes, self.differing)

    def _asked(self, what: str, name: str, *arguments: Any, largest: int | None = None) -> list[Any]:
        for rank, process in enumerate(self.processes):
            own = lambda handle, rank=rank: handle.handles[rank] if isinstance(handle, RankHandle) else handle
            given = with_handles(arguments, own) if self.is_launched else arguments
            process.ask(name, *given, largest=largest)
        return self._together(what)

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

    def offers(self, forward: Any, name: str) -> bool:
        return all(self._asked("the request for its methods", "offers", forward.handle.number, name))

    def answers_of(self, forward: Any, name: str, tokens: Mapping[str, np.ndarray]) -> list[Any]:
        return self._asked(name, "call", forward.handle.number, name, (), dict(tokens), None)

    def sharding_of(self, handle: Handle) -> Sharding:
        return self.shardings.get(handle.number, ALONE)

    def handle(self, number: int) -> Handle:
        handle = Handle(number, "port")
        return self.forgotten_with(RankHandle([handle] * self.ranks) if self.is_launched else handle)

    def forgotten_with(self, handle: Handle) -> Handle:
        """Make the processes free an object as soon as the checker frees the object's handle."""
        handles = handle.handles if isinstance(handle, RankHandle) else (handle,)
        for process, each in zip(self.processes, handles, strict=False):
            weakref.finalize(handle, process.released.append, each.number)
        return handle


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
