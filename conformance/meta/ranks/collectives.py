"""Collectives through which gradients flow, and the process group of the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

Exchange = Callable[[torch.Tensor], torch.Tensor]


def join_group() -> tuple[int, int]:
    """Join the other ranks, as a script under torchrun does; return the rank and their number."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def summed(x: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ranks, without a gradient."""
    total = x.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the values of all ranks along an axis, without a gradient."""
    if not dist.is_initialized():
        return x.detach()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts, dim)


def own(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the shard of this rank along an axis."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return x.chunk(ranks, dim)[rank]


class Collective(torch.autograd.Function):
    """A function of all ranks' values in the forward pass, and of their gradients in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Exchange, back: Exchange) -> torch.Tensor:
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.back(gradient), None, None


def _exchanged(x: torch.Tensor, there: Exchange, back: Exchange) -> torch.Tensor:
    return cast(torch.Tensor, Collective.apply(x, there, back))  # type: ignore[no-untyped-call]


def copied(x: torch.Tensor) -> torch.Tensor:
    """Return the same values, of which every rank uses a part: gradients add up."""
    return _exchanged(x, lambda x: x.view_as(x), summed)


def reduced(x: torch.Tensor) -> torch.Tensor:
    """Return the sum of the partial sums of all ranks, each of which has the whole gradient."""
    return _exchanged(x, summed, lambda gradient: gradient)


def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the shards of all ranks, each of which takes its own gradient."""
    return _exchanged(x, lambda x: gathered(x, dim), lambda gradient: own(gradient, dim))


def scatter(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the shard of a rank: gradients of all ranks are concatenated."""
    return _exchanged(x, lambda x: own(x, dim).clone(), lambda gradient: gathered(gradient, dim))
