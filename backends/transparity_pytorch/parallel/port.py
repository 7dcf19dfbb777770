"""The entry point of the PyTorch column for several ranks: `ShardedBackend(data, tensor)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch._dynamo  # the first DTensor operation would import it, during the forward pass
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from transparity.checked import CheckedShardedBackend, Execution, Inputs
from transparity.config import TransformerConfig
from transparity.errors import BackendError
from transparity.parts.plan import plan
from transparity.parts.tables import MIXERS
from transparity.protocol import Arrays
from transparity.taps import chained, identity, recording
from transparity.training import Training
from transparity_pytorch.arithmetic.changes import dropping, rounding
from transparity_pytorch.decoding.steps import step
from transparity_pytorch.layers.sequential import Layer
from transparity_pytorch.parallel.sharding import Root, all_gathered, chunk, distributed, gathered, on_mesh, shard
from transparity_pytorch.parallel.training import IGNORED, loss_and_gradients, train
from transparity_pytorch.port import PytorchForward, build, tensor
from transparity_pytorch.state.cache import Cache
from transparity_pytorch.state.parameters import to_numpy
from transparity_pytorch.transformer import Transformer


class ShardedForward(PytorchForward):
    """A `transparity.protocol.Forward` over a mesh; every rank makes the same calls and gets the same results.

    In the forward pass and in training, each data rank has its own rows. In decoding, and in training with a batch
    norm, each data rank has all rows.
    """

    def __init__(self, root: Root, mesh: DeviceMesh, activations: torch.dtype | None = None) -> None:
        super().__init__(root.model, mesh.device_type, "eager", activations)
        self.root, self.mesh, self.stepped = root, mesh, sharded_step
        self.rounding = rounding(activations) if activations else identity

    @property
    def fastest(self) -> Transformer:
        return self.model

    @torch.no_grad()
    def _taps(self, inputs: Inputs) -> dict[str, Tensor]:
        taps: dict[str, Tensor] = {}
        with on_mesh():
            self.root(Transformer.__call__, **self._rows(inputs), tap=chained(self.rounding, recording(taps)))
            return {name: self._all_rows(value, inputs) for name, value in taps.items()}

    @torch.no_grad()
    def _logits(self, inputs: Inputs, out: Tensor | None = None) -> Tensor:
        with on_mesh():
            logits = self._all_rows(self.root(Transformer.__call__, **self._rows(inputs), tap=self.rounding), inputs)
        return logits if out is None else out.copy_(logits)

    def _loss_and_gradients(
        self, targets: np.ndarray, inputs: Inputs, masks: Inputs, *, training: bool
    ) -> tuple[float, dict[str, np.ndarray]]:
        self.root.train(training).model.dropout.eval()
        try:
            with on_mesh():
                tap = dropping(self._rows(masks), self.config.dropout) if masks else identity
                batch = self._rows({"targets": targets, **inputs})
                loss, gradients = loss_and_gradients(self.root, self.mesh["data"], tap=tap, **batch)
                return float(loss), {name: to_numpy(gathered(gradient)) for name, gradient in gradients.items()}
        finally:
            self.root.eval()

    def _train(self, batches: list[Inputs], training: Training) -> tuple[list[float], dict[str, np.ndarray]]:
        before = {name: value.detach().clone() for name, value in self.root.named_parameters()}
        self.root.train().model.dropout.eval()
        try:
            with on_mesh():
                losses, parameters = train(self.root, self.mesh["data"], [self._rows(it) for it in batches], training)
                return losses, {name: to_numpy(gathered(value)) for name, value in parameters.items()}
        finally:
            self.root.eval()
            with torch.no_grad():
                for name, value in self.root.named_parameters():
                    value.copy_(before[name])

    def _start(self, *given: Any) -> Any:
        return self._by_all(super()._start, *given)

    def _step(self, *given: Any) -> tuple[Tensor, Any]:
        return self._by_all(super()._step, *given)

    def _generate(self, *given: Any) -> np.ndarray:
        return self._by_all(super()._generate, *given)

    def _beam_search(self, *given: Any) -> tuple[np.ndarray, np.ndarray]:
        return self._by_all(super()._beam_search, *given)

    @torch.no_grad()
    def _by_all(self, method: Callable[..., Any], *given: Any) -> Any:
        """Call a decoding method on every rank; each data rank has all rows and all parameters."""
        with on_mesh(), all_gathered(self.root):
            return self.root(lambda model: method(*given))

    def _held(self, rows: int) -> slice:
        if self.config.norm == "batch" and self.root.training:
            return slice(0, rows)
        return chunk(slice(0, rows), self.mesh["data"])

    def _rows(self, values: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return this data rank's rows. A rank without rows gets a copy of the first row, and the copy's targets do not
        count."""
        rows = {}
        for name, value in values.items():
            whole = tensor(value, None, self.device)
            held = self._held(len(whole))
            rows[name] = whole[held] if held.stop > held.start else whole[:1]
            if name == "targets" and held.stop == held.start:
                rows[name] = torch.full_like(rows[name], IGNORED)
        return rows

    def _all_rows(self, value: Tensor, inputs: Inputs) -> Tensor:
        """Gather the rows that each data rank has computed."""
        batch = len(next(iter(inputs.values())))
        held, value = self._held(batch), gathered(value)
        local = value[: held.stop - held.start].contiguous()
        whole = torch.empty(batch, *value.shape[1:], device="meta")
        return distributed(local, self.mesh["data"], Shard(0), whole).full_tensor()


def sharded_step(model: Transformer, tokens: Tensor, cache: Cache, **options: Any) -> Tensor:
    """Distribute the cached arrays of the mixers over the tensor ranks, and return the logits of a step."""
    for layer, kept in zip(model.decoder.layers, cache["layers"], strict=True):
        assert isinstance(layer, Layer)
        mixer = MIXERS[layer.config.mixer]
        module, arrays = getattr(layer, mixer.scope), kept[mixer.scope]
        for name, held in mixer.state(layer.config).items():
            if not isinstance(value := arrays[name], DTensor):
                name_of_cut, axis = held.cut or ("", None)
                placed = module.get_parameter(name_of_cut) if name_of_cut else next(layer.parameters())
                assert isinstance(placed, DTensor)
                shards = [Replicate() if axis is None or not it.is_shard() else Shard(axis) for it in placed.placements]
                whole = distributed(value, placed.device_mesh, Replicate(), value)
                arrays[name] = whole.redistribute(placements=shards)
    return gathered(step(model, tokens, cache, **options))


class ShardedBackend(CheckedShardedBackend[ShardedForward]):
    """A `transparity.protocol.Backend` over a mesh of data × tensor ranks, on GPUs if each rank has its own GPU."""

    name = "pytorch"
    dtypes = build.dtypes
    modes = ("eager",)

    def __init__(self, data: int, tensor: int) -> None:
        if not dist.is_initialized():
            dist.init_process_group("nccl" if _a_gpu_for_each() else "gloo")
        if data * tensor > dist.get_world_size():
            given = f"{data} data ranks × {tensor} tensor ranks need {data * tensor} processes"
            raise BackendError(f"{given}, but {dist.get_world_size()} were launched.")
        ranks = torch.arange(data * tensor).reshape(data, tensor)
        self.mesh = DeviceMesh(self.devices()[0], ranks, mesh_dim_names=("data", "tensor"))
        self.takes_part = dist.get_rank() < data * tensor

    def devices(self) -> tuple[str, ...]:
        return ("cuda",) if dist.get_backend() == "nccl" else ("cpu",)

    def _build(self, config: TransformerConfig, parameters: Arrays, execution: Execution) -> ShardedForward:
        placed = plan(config, self.mesh["tensor"].size(), evenly=False)
        root = shard(config, self.mesh, placed, parameters, getattr(torch, execution.dtype))
        activations = getattr(torch, execution.activations) if execution.activations else None
        return ShardedForward(root, self.mesh, activations)


def _a_gpu_for_each() -> bool:
    """Return whether this machine has a GPU for each of its ranks; NCCL does not allow two ranks on one GPU."""
    ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE", "1")
    return torch.cuda.device_count() >= int(ranks)
