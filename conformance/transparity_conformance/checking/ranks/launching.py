"""The environment of each rank, as `torchrun` and JAX's multi-process programs expect it, on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

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
