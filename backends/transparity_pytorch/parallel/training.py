"""Training over data ranks: the loss over the tokens of all ranks, its gradients, and the steps of an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from transparity.training import Training
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.parallel.sharding import Root
from transparity_pytorch.training import optimization
from transparity_pytorch.transformer import Transformer

IGNORED = -100
"""The number that replaces targets that do not count; it is no token id."""


def loss_and_gradients(
    root: Root, mesh: DeviceMesh, targets: Tensor, **tokens: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of the whole batch, and the loss's gradient for each learned parameter, sharded like the
    parameter.

    `targets` and `tokens` are this rank's rows. `IGNORED` marks targets that do not count.
    """
    statistics = {name: buffer.clone() for name, buffer in root.named_buffers()}
    total, count = root(_summed, targets, **tokens), (_counted(root.model, targets) != IGNORED).sum().to(torch.float64)
    dist.all_reduce(count, group=mesh.get_group())
    loss = total / count.to(total.dtype)
    # FSDP averages the gradients of all ranks. Averaging the mean losses of all ranks would be wrong, because ranks
    # have different numbers of tokens.
    (loss * mesh.size()).backward()
    loss = loss.detach()
    dist.all_reduce(loss, group=mesh.get_group())
    for name, buffer in root.named_buffers():
        buffer.copy_(statistics[name])
    return loss, {name: _taken(parameter) for name, parameter in root.model.named_parameters()}


def train(
    root: Root, mesh: DeviceMesh, batches: Sequence[Mapping[str, Tensor]], training: Training
) -> tuple[list[float], dict[str, Tensor]]:
    """Take one step per batch of this rank's rows; return the loss before each step and the final learned parameters.

    Clipping uses the norm over all shards.
    """

    def differentiate(model: nn.Module, **batch: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return loss_and_gradients(root, mesh, **batch)

    return optimization.train(root.model, batches, training, differentiate, _local)


def _summed(model: Transformer, targets: Tensor, **tokens: Any) -> Tensor:
    logits = upcast(model(**tokens)).flatten(0, 1)
    counted = _counted(model, targets)
    return F.cross_entropy(logits, counted.flatten(), ignore_index=IGNORED, reduction="sum")


def _counted(model: Transformer, targets: Tensor) -> Tensor:
    pad = model.config.pad_id
    return targets if pad is None else targets.masked_fill(targets == pad, IGNORED)


def _taken(parameter: nn.Parameter) -> Tensor:
    """Return a parameter's gradient and clear it; return zeros if the loss does not depend on the parameter."""
    gradient, parameter.grad = parameter.grad, None
    if gradient is None:
        return torch.zeros_like(parameter)
    assert isinstance(parameter, DTensor) and isinstance(gradient, DTensor)
    placed: Tensor = gradient.redistribute(placements=parameter.placements)
    return placed.detach()


@torch.no_grad()
def _local(value: Tensor) -> Tensor:
    assert isinstance(value, DTensor)
    return value.to_local()
