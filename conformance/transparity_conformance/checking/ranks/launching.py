"""Ranks on this machine: the environment of each, as `torchrun` and JAX's multi-process programs expect it, and a call
that all of them answer."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from transparity_conformance.capabilities.port_calls import PortCallError, PortProcessError
from transparity_conformance.running.process.isolation import PortProcess, PortTimeoutError

ADDRESS = "127.0.0.1"

LOCAL = {
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
}
"""Variables that keep what they are set to: threads as `torchrun` sets them, and collectives over the loopback."""


def environments(ranks: int) -> list[dict[str, str]]:
    """The variables of each rank: those of `torchrun`, and the coordinator of `jax.distributed.initialize`."""
    torch_port, jax_port = _free_ports()
    of_all = {name: value for name, value in LOCAL.items() if name not in os.environ} | {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(torch_port),
        "JAX_COORDINATOR_ADDRESS": f"{ADDRESS}:{jax_port}",
        "GROUP_RANK": "0",
    }
    return [of_all | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _free_ports() -> Iterator[int]:
    """Two ports of this machine that nothing listens on."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind((ADDRESS, 0))
        ports = [each.getsockname()[1] for each in (one, other)]
    return iter(ports)


WAITS = 5.0
"""Seconds beyond those that the first rank took to fail, after which the others are taken to wait for it."""


class _Deserted(Exception):  # noqa: N818 - no error
    """Another rank has failed, and this one waits for it."""


class SharedCall:
    """One request that all ranks answer, each in a thread of its own."""

    def __init__(self, processes: Sequence[PortProcess], what: str) -> None:
        self.processes, self.what = processes, what
        self.found: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}
        self.began = time.monotonic()
        self.deserted_at = float("inf")

    def run(self) -> None:
        """Wait for every rank, or until those that are left wait for one that failed."""
        threads = [threading.Thread(target=self._receive, args=[rank], daemon=True) for rank in self._numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():  # a wait without end would not let Ctrl-C through
                thread.join(0.5)

    @property
    def _numbers(self) -> range:
        return range(len(self.processes))

    def _receive(self, rank: int) -> None:
        try:
            self.found[rank] = self.processes[rank].received(self.what, self._is_waiting)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread of the caller
            self.errors[rank] = error
            now = time.monotonic()
            self.deserted_at = min(self.deserted_at, now + (now - self.began) + WAITS)

    def _is_waiting(self) -> bool:
        if time.monotonic() > self.deserted_at:
            raise _Deserted
        return True

    def answers(self) -> list[Any]:
        """The answers by rank; raises the error of the rank that failed first of all."""
        if not self.errors:
            return [self.found[rank] for rank in self._numbers]
        waited = [rank for rank, error in self.errors.items() if isinstance(error, _Deserted)]
        timeouts = [rank for rank, error in self.errors.items() if isinstance(error, PortTimeoutError)]
        ended = [r for r, error in self.errors.items() if isinstance(error, PortProcessError) and r not in timeouts]
        if ended:
            raise self.errors[ended[0]]
        if timeouts:
            raise PortTimeoutError(self._late(timeouts))
        rank, error = next((rank, error) for rank, error in self.errors.items() if rank not in waited)
        if not isinstance(error, PortCallError):
            raise error
        if waited:
            said = f"and {_named(waited)} waited for it; all were stopped"
            raise PortProcessError(f"Rank {rank} of {len(self.processes)} raised {error} at {self.what}, {said}.")
        everywhere = len(self.errors) == len(self.processes)
        raise PortCallError(str(error) if everywhere else f"on rank {rank} of {len(self.processes)}: {error}")

    def _late(self, timeouts: Sequence[int]) -> str:
        """The sentence for ranks that gave no answer in time."""
        process, answered = self.processes[0], [rank for rank in self._numbers if rank in self.found]
        others = f" ({_named(answered)} answered)" if answered else ""
        return (
            f"{_named(timeouts).capitalize()} of {len(self.processes)} gave no answer to {self.what} within "
            f"{process.timeout:g} s{others} and all were stopped; a collective that not every rank enters waits for "
            "ever, and --timeout gives a slow port more."
        )


def _named(ranks: Sequence[int]) -> str:
    numbers = [str(rank) for rank in sorted(ranks)]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"
