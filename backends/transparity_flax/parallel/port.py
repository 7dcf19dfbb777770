"""The entry point of the JAX column for several devices: `ShardedBackend(data, tensor)`."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax.sharding import Mesh

from transparity.checked import CheckedShardedBackend, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.errors import BackendError
from transparity.parts.plan import plan
from transparity.protocol import Arrays
from transparity_flax.fast.structure import SplitModel
from transparity_flax.parallel.sharding import replicated, shard, split_rows
from transparity_flax.parallel.training import loss_of_rows, start_on_mesh
from transparity_flax.port import FlaxForward, build, in_its_precision, x64_for
from transparity_flax.transformer import Transformer


class ShardedForward(FlaxForward):
    """A `transparity.protocol.Forward` over a mesh.

    In the forward pass and in training, each data rank has its own rows. In decoding, and in training with a batch
    norm, each data rank has all rows.
    """

    def __init__(self, model: Transformer, dtype: str, mesh: Mesh, activations: str | None = None) -> None:
        super().__init__(model, dtype, replicated(mesh), "jit", activations)
        self.mesh, self.start = mesh, functools.partial(start_on_mesh, mesh)

    loss_of = staticmethod(loss_of_rows)

    @functools.cached_property
    def split(self) -> SplitModel:
        return self.config, self.structure, self.weights

    @in_its_precision
    def _taps(self, inputs: Inputs) -> dict[str, jax.Array]:
        return {name: value[: _batch(inputs)] for name, value in super()._taps(inputs).items()}

    @in_its_precision
    def _logits(self, inputs: Inputs, out: jax.Array | None = None) -> jax.Array:
        return super()._logits(inputs, out)[: _batch(inputs)]

    def _rows(self, values: Inputs, *, training: bool = False) -> dict[str, jax.Array]:
        """Shard inputs or masks over the data ranks, unless a batch norm normalizes by the batch."""
        by_batch = self.config.norm == "batch" and training
        return self._arrays(values) if by_batch else split_rows(self.mesh, values)


class ShardedBackend(CheckedShardedBackend[ShardedForward]):
    """A `transparity.protocol.Backend` over a mesh of data × tensor devices.

    The mesh consists of the first devices of JAX's default platform or, if these are too few, of the first CPU devices.
    """

    name = "flax"
    dtypes = build.dtypes
    modes = ("jit",)
    takes_part = True

    def __init__(self, data: int, tensor: int) -> None:
        devices = max(jax.devices(), jax.devices("cpu"), key=lambda found: min(len(found), data * tensor))
        if data * tensor > len(devices):
            given = f"{data} data ranks × {tensor} tensor ranks need {data * tensor} devices"
            raise BackendError(
                f"{given}, but there are {len(devices)}; add CPU devices with --xla_force_host_platform_device_count "
                "in XLA_FLAGS."
            )
        self.mesh = Mesh(np.array(devices[: data * tensor]).reshape(data, tensor), ("data", "tensor"))

    def devices(self) -> tuple[str, ...]:
        return ("cpu",) if self.mesh.devices.flat[0].platform == "cpu" else ("cuda",)

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> ShardedForward:
        placed, dtype = plan(config, self.mesh.shape["tensor"], evenly=True), execution.dtype
        with x64_for(dtype):
            model = shard(config, self.mesh, placed, parameters, dtype)
            return ShardedForward(model, dtype, self.mesh, execution.activations)


def _batch(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))
