"""A batch distributed over devices.

On a CPU, XLA uses one core for everything except matrix products. With one device per core
(`--xla_force_host_platform_device_count`), it uses all cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "devices"


def can_shard(tokens: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> bool:
    """Return whether the rows, or the positions of a single row, can be distributed evenly over the devices."""
    return len(devices) > 1 and all(value.shape[_axis(value)] % len(devices) == 0 for value in tokens.values())


def shard(tokens: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> dict[str, jax.Array]:
    """Distribute the rows over the devices or, for a single row, its positions; XLA then exchanges keys and values."""
    return {
        name: jax.device_put(value, _sharding(devices, *[None] * _axis(value), AXIS)) for name, value in tokens.items()
    }


def replicate(state: Any, devices: Sequence[jax.Device]) -> Any:
    """Copy the weights to every device."""
    return jax.device_put(state, _sharding(devices))


def _axis(tokens: np.ndarray) -> int:
    return 0 if len(tokens) > 1 else 1


def _sharding(devices: Sequence[jax.Device], *axes: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(*axes))
