"""Collectives with gradients, and the process group of the ranks."""

import os
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

Exchange = Callable[[torch.Tensor], torch.Tensor]


def join_group() -> tuple[int, int]:
    """Join the process group as a script under torchrun does; return the rank and the number of ranks."""
    torch.set_num_threads(1)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def summed(x: torch.Tensor) -> torch.Tensor:
    total = x.detach().clone()
    if dist.is_initialized():
        dist.all_reduce(total)
    return total


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return the values of all ranks, concatenated along an axis, without a gradient."""
    if not dist.is_initialized():
        return x.detach()
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return torch.cat(parts, dim)


def own(x: torch.Tensor, dim: int) -> torch.Tensor:
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return x.chunk(ranks, dim)[rank]


class Collective(torch.autograd.Function):
    """An autograd function that exchanges values between ranks, and their gradients in the backward pass."""

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
    """Return `x`; the gradients of all ranks are summed, because each rank uses a part of `x`."""
    return _exchanged(x, lambda x: x.view_as(x), summed)


def reduced(x: torch.Tensor) -> torch.Tensor:
    return _exchanged(x, summed, lambda gradient: gradient)


def gather(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _exchanged(x, lambda x: gathered(x, dim), lambda gradient: own(gradient, dim))


def scatter(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _exchanged(x, lambda x: own(x, dim).clone(), lambda gradient: gathered(gradient, dim))
