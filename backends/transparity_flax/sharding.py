"""One batch over several devices: the file without a twin. XLA's CPU keeps one core busy with all that is no matrix
product, so whoever asks it for a device a core (`--xla_force_host_platform_device_count`) has all of them work.
PyTorch's kernels take all cores by themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "devices"


def can_be_spread(tokens: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> bool:
    """Whether all devices get as many rows; of a single row, as many positions."""
    return len(devices) > 1 and all(value.shape[_axis(value)] % len(devices) == 0 for value in tokens.values())


def spread(tokens: Mapping[str, np.ndarray], devices: Sequence[jax.Device]) -> dict[str, jax.Array]:
    """The rows over the devices; of a single row, the positions. XLA has them exchange what attention looks at."""
    return {
        name: jax.device_put(value, _sharding(devices, *[None] * _axis(value), AXIS)) for name, value in tokens.items()
    }


def copied(state: Any, devices: Sequence[jax.Device]) -> Any:
    """The same numbers on every device."""
    return jax.device_put(state, _sharding(devices))


def _axis(tokens: np.ndarray) -> int:
    return 0 if len(tokens) > 1 else 1


def _sharding(devices: Sequence[jax.Device], *axes: str | None) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(*axes))
