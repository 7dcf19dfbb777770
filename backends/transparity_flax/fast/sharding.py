"""A batch distributed over devices.

On a CPU, XLA uses one core for everything except matrix products. With one device per core
(`--xla_force_host_platform_device_count`), XLA uses all cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "devices"


def can_shard(inputs: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> bool:
    """Return whether there are several devices, and the number of rows is divisible by the number of devices."""
    return len(devices) > 1 and all(len(value) % len(devices) == 0 for value in inputs.values())


def shard(inputs: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> dict[str, jax.Array]:
    return {name: jax.device_put(value, _sharding(devices, AXIS)) for name, value in inputs.items()}


def replicate(state: Any, devices: Sequence[jax.Device]) -> Any:
    """Copy the weights to every device."""
    return jax.device_put(state, _sharding(devices))


def _sharding(devices: Sequence[jax.Device], *axes: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(*axes))
