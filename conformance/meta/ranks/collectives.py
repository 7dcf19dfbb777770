"""Collectives through which gradients flow, and the process group of the ranks."""

from __future__ import annotations

import os
from typing import Any, cast

import torch
import torch.distributed as dist


def join_group() -> tuple[int, int]:
    """Join the other ranks, as a script under torchrun does; return the rank and their number."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def summed(x: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks, without a gradient."""
    total = x.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The values of all ranks along an axis, without a gradient."""
    if not dist.is_initialized():
        return x.detach()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts, dim)


class Copied(torch.autograd.Function):
    """The same on every rank, each of which uses it for a part: gradients add up."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient)


class Reduced(torch.autograd.Function):
    """Partial sums of all ranks, added up: every rank has the whole gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return summed(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Gathered(torch.autograd.Function):
    """Shards of all ranks along an axis, put together: every rank takes the gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.width = dim, x.shape[dim]
        return gathered(x, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        rank = dist.get_rank() if dist.is_initialized() else 0
        return gradient.narrow(ctx.dim, rank * ctx.width, ctx.width), None


class Scattered(torch.autograd.Function):
    """The shard of a rank along an axis: gradients of all ranks are put together."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim = dim
        rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        return x.chunk(ranks, dim)[rank].clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gathered(gradient, ctx.dim), None


def copied(x: torch.Tensor) -> torch.Tensor:
    """The same values, of which every rank uses a part."""
    return cast(torch.Tensor, Copied.apply(x))  # type: ignore[no-untyped-call]


def reduced(x: torch.Tensor) -> torch.Tensor:
    """The sum of the partial sums of all ranks."""
    return cast(torch.Tensor, Reduced.apply(x))  # type: ignore[no-untyped-call]


def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The shards of all ranks."""
    return cast(torch.Tensor, Gathered.apply(x, dim))  # type: ignore[no-untyped-call]


def scatter(x: torch.Tensor, dim: int) -> torch.Tensor:
    """The shard of a rank."""
    return cast(torch.Tensor, Scattered.apply(x, dim))  # type: ignore[no-untyped-call]
