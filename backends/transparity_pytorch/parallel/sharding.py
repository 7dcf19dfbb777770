"""A model distributed over a mesh: parameters are DTensors, FSDP wraps the layers, and ranks read only their slices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, empty
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from transparity.config import TransformerConfig
from transparity.parts.plan import Plan
from transparity_pytorch.layers.sequential import Layer
from transparity_pytorch.norms.norm import Norm
from transparity_pytorch.transformer import Transformer

Source = Mapping[str, Any]
"""The arrays of parameters, or the slices that a safetensors file provides, by name."""


BY_HEADS: dict[Callable[..., Any], tuple[int, ...]] = {torch.conv1d: (1, 0, 0), torch.linalg.solve_triangular: (1, 1)}
"""Operators that DTensor does not distribute. The numbers are the axis of the heads in each argument; in the result,
heads are axis 1. Recurrences and the embedding of audio use these operators."""


class Root(nn.Module):
    """FSDP's root module, which calls a `function` of the model after FSDP has gathered the parameters outside
    layers."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return function(self.model, *given, **named)


@contextmanager
def on_mesh() -> Iterator[None]:
    """Return a context manager in which DTensors can be combined with constants, which are equal on all ranks.

    In this context, attention uses plain operators, because DTensor does not distribute the CPU's fused kernel.
    """
    with implicit_replication(), sdpa_kernel(SDPBackend.MATH), _ByHeads():
        yield


class _ByHeads(TorchFunctionMode):
    """A context manager in which each rank applies the operators of `BY_HEADS` to its own heads."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, given: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        named = named or {}
        tensors = [x for x in given if x is None or isinstance(x, Tensor)]
        held, rest = [x for x in tensors if isinstance(x, DTensor)], given[len(tensors) :]
        if function not in BY_HEADS or not held:
            return function(*given, **named)
        cut, mesh = any(placement.is_shard() for x in held for placement in x.placements), held[0].device_mesh
        ranks = mesh.size() if cut else 1
        if "groups" in named:
            named = named | {"groups": named["groups"] // ranks}
        places = [[Shard(axis)] if cut else [Replicate()] for axis in (1, *BY_HEADS[function])]
        taken = tuple(place if isinstance(x, DTensor) else None for x, place in zip(tensors, places[1:], strict=False))

        def own(*tensors: Tensor | None) -> Any:
            return function(*tensors, *rest, **named)

        return local_map(own, places[0], taken, redistribute_inputs=True, device_mesh=mesh)(*tensors)


def shard(config: TransformerConfig, mesh: DeviceMesh, plan: Plan, source: Source, dtype: torch.dtype) -> Root:
    """Return a model distributed over `mesh`; each rank reads only its slices of the parameters from `source`.

    `mesh` has two axes: `plan` splits parameters over `tensor`, and FSDP shards each tensor rank's share over `data`.
    """
    with torch.device("meta"):
        model = Transformer(config)
    root, names = Root(model), {id(value): name for name, value in model.state_dict(keep_vars=True).items()}
    _hook(model, plan)
    for unit in [*(module for module in model.modules() if isinstance(module, Layer)), root]:
        _materialize(unit, names, mesh["tensor"], plan, dtype)
        if mesh["data"].size() > 1:
            fully_shard(unit, mesh=mesh["data"], reshard_after_forward=True)  # the root frees its parameters, too
    for name, value in model.state_dict(keep_vars=True).items():
        with torch.no_grad():
            local = value.to_local() if isinstance(value, DTensor) else value
            local.copy_(torch.as_tensor(np.asarray(source[name][slices(mesh, plan, name, value)])))
    model.register_forward_hook(lambda module, given, logits: gathered(logits))
    return root.eval()


def slices(mesh: DeviceMesh, plan: Plan, name: str, value: Tensor) -> tuple[slice, ...]:
    """Return this rank's slices of a parameter: `plan[name].axis` is split over tensor ranks, and axis 0 over data
    ranks."""
    held, axis = [slice(0, size) for size in value.shape], plan[name].axis
    if axis is not None:
        held[axis] = chunk(held[axis], mesh["tensor"])
    if mesh["data"].size() > 1 and isinstance(value, nn.Parameter):
        held[0] = chunk(held[0], mesh["data"])
    return tuple(held)


def chunk(whole: slice, mesh: DeviceMesh) -> slice:
    """Return this rank's slice of `whole`, split as `torch.chunk` does; the last ranks may get shorter or empty
    slices."""
    size = -(-(whole.stop - whole.start) // mesh.size())
    start = min(whole.start + mesh.get_local_rank() * size, whole.stop)
    return slice(start, min(start + size, whole.stop))


def distributed(local: Tensor, mesh: DeviceMesh, placement: Shard | Replicate, whole: Tensor) -> DTensor:
    placements = (placement,)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def gathered(value: Any) -> Any:
    """Return the whole value of a DTensor as an ordinary tensor; return anything else unchanged."""
    return value.full_tensor() if isinstance(value, DTensor) else value


@contextmanager
def all_gathered(root: Root) -> Iterator[None]:
    """Return a context manager in which each data rank has all parameters, for functions that call parts of layers."""
    units = [module for module in root.modules() if isinstance(module, FSDPModule)]
    if units:
        root(lambda model: None)  # FSDP takes the first module that is called as its root
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()


def _materialize(unit: nn.Module, names: Mapping[int, str], mesh: DeviceMesh, plan: Plan, dtype: torch.dtype) -> None:
    """Replace the parameters on the meta device by this tensor rank's shares; tied parameters stay tied."""
    made: dict[int, Tensor] = {}
    for module in unit.modules():
        for name, value in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            if value.is_meta and id(value) not in made:
                made[id(value)] = _share(value, plan[names[id(value)]].axis, mesh, dtype)
            if value.is_meta:
                setattr(module, name, made[id(value)])


def _share(value: Tensor, axis: int | None, mesh: DeviceMesh, dtype: torch.dtype) -> Tensor:
    placement = Replicate() if axis is None else Shard(axis)
    share = empty(value.shape, dtype=dtype, device_mesh=mesh, placements=[placement])
    return nn.Parameter(share) if isinstance(value, nn.Parameter) else share


def _hook(model: Transformer, plan: Plan) -> None:
    """Register hooks that sum the partial results of modules that are sharded by input features.

    If the linear maps after a norm are sharded, each rank has a partial gradient of the norm's result; a hook sums
    these gradients.
    """
    for name, module in model.named_modules():
        read = {nn.Linear: 1, nn.Embedding: 0}.get(type(module))
        placed = plan.get(f"{name}.weight")
        if isinstance(module, Norm) or (placed and read is not None and placed.axis == read):
            module.register_forward_hook(lambda module, given, result: _whole(result))


def _whole(value: DTensor) -> DTensor:
    """Return, on every rank, the sum of the ranks' partial results; in the backward pass, sum the partial gradients."""
    value = value.redistribute(placements=[Replicate()])
    if value.requires_grad:
        value.register_hook(lambda gradient: gradient.redistribute(placements=[Replicate()]))
    return value
