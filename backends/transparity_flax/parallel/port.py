"""The entry point of the JAX column for several devices: `ShardedBackend(data, tensor)`."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from transparity.checked import CheckedShardedBackend, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.errors import BackendError
from transparity.protocol import Arrays
from transparity.training import Training
from transparity_flax.fast.structure import SplitModel
from transparity_flax.parallel.plan import plan
from transparity_flax.parallel.sharding import replicated, shard, split_rows
from transparity_flax.parallel.training import loss_and_gradients, train
from transparity_flax.port import FlaxForward, _fast, _traced, build, in_its_precision, ordered, x64_for
from transparity_flax.state.parameters import to_numpy
from transparity_flax.transformer import Transformer


class ShardedForward(FlaxForward):
    """A `transparity.protocol.Forward` over a mesh.

    In the forward pass and in training, each data rank has its own rows. In decoding, and if a batch norm normalizes by
    the batch, each data rank has all rows.
    """

    def __init__(self, model: Transformer, dtype: str, mesh: Mesh, activations: str | None = None) -> None:
        super().__init__(model, dtype, replicated(mesh), "jit", activations)
        self.mesh = mesh

    @functools.cached_property
    def split(self) -> SplitModel:
        return self.config, self.structure, self.weights

    @in_its_precision
    def _taps(self, inputs: Inputs) -> dict[str, jax.Array]:
        taps = _traced(self.structure, self.weights, split_rows(self.mesh, inputs), self.activations)
        return {name: taps[name][: _batch(inputs)] for name in ordered(self.config, inputs, taps)}

    @in_its_precision
    def _logits(self, inputs: Inputs) -> jax.Array:
        logits = _fast(self.structure, self.weights, split_rows(self.mesh, inputs), self.activations)
        return logits[: _batch(inputs)]

    @in_its_precision
    def _loss_and_gradients(
        self, targets: np.ndarray, inputs: Inputs, masks: Inputs, *, training: bool
    ) -> tuple[float, dict[str, np.ndarray]]:
        batch = self._batch({"targets": targets, **inputs}, training=training)
        kept = self._arrays(masks) if self._by_batch(training=training) else split_rows(self.mesh, masks)
        loss, gradients = loss_and_gradients(*nnx.split(self.learners[training].model(self.weights)), batch, kept)
        return float(loss), {name: to_numpy(gradient) for name, gradient in gradients.items()}

    @in_its_precision
    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]:
        losses, parameters = train(
            self.mesh,
            *nnx.split(self.learners[True].model(self.weights)),
            [self._batch(it, training=True) for it in batches],
            training,
        )
        return losses, {name: to_numpy(value) for name, value in parameters.items()}

    def _batch(self, values: Inputs, *, training: bool) -> dict[str, Any]:
        """Return the inputs, sharded over the data ranks, and the targets without the repeated rows that fill ranks."""
        tokens = {name: value for name, value in values.items() if name != "targets"}
        tokens = self._arrays(tokens) if self._by_batch(training=training) else split_rows(self.mesh, tokens)
        return {"targets": self._array(values["targets"]), **tokens}

    def _by_batch(self, *, training: bool) -> bool:
        return self.config.norm == "batch" and training


class ShardedBackend(CheckedShardedBackend[ShardedForward]):
    """A `transparity.protocol.Backend` over a mesh of data × tensor devices.

    The mesh has the first of JAX's default devices or, if there are too few, of its CPU devices.
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
                f"{given}; there are {len(devices)}, and --xla_force_host_platform_device_count in XLA_FLAGS can add "
                "more."
            )
        self.mesh = Mesh(np.array(devices[: data * tensor]).reshape(data, tensor), ("data", "tensor"))

    def devices(self) -> tuple[str, ...]:
        return ("cpu",) if self.mesh.devices.flat[0].platform == "cpu" else ("cuda",)

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> ShardedForward:
        placed, dtype = plan(config, self.mesh.shape["tensor"]), execution.dtype
        with x64_for(dtype):
            model = shard(config, self.mesh, placed, parameters, dtype)
            return ShardedForward(model, dtype, self.mesh, execution.activations)


def _batch(inputs: Inputs) -> int:
    return len(next(iter(inputs.values())))
