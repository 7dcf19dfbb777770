"""Recorded kernels, for GPUs: a small kernel takes longer to launch than to run, a recording is launched as one. XLA
records its programs by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch


def recorded(change: Callable[[], None]) -> Callable[[], None]:
    """Record the kernels of `change`, and return what runs them again.

    Args:
        change: A function that changes tensors on the GPU in place, whose shapes do not depend on what they hold. It
            has run once, so that all libraries have made what they make at a first call; recording does not run it.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        change()
    return graph.replay
