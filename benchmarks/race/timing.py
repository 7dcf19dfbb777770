"""The duration of a run: one call on a CPU, or the mean of many calls after a warm-up on a GPU."""

import sys
import time
from collections.abc import Callable
from typing import Any

WARM = 0.1
"""The seconds of warm-up before timing a GPU, because an idle GPU lowers its clock rate."""

WORK = 1e9
"""A machine's limit is stored as the time that the machine takes for this number of FLOPs or bytes."""

Run = Callable[[], Any]


def seconds(run: Run, device: str) -> float:
    if device == "cpu":
        return clocked(run)[0]
    return mean(run, repeated(run, WARM))


def repeated(run: Run, least: float) -> int:
    begin, calls = time.perf_counter(), 0
    while time.perf_counter() - begin < least:
        run()
        calls += 1
    return calls


def mean(run: Run, calls: int) -> float:
    """Return the mean duration of `calls` calls, by CUDA events if PyTorch is loaded, otherwise by the clock."""
    if "torch" not in sys.modules:
        return clocked(lambda: [run() for _ in range(calls)])[0] / calls
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / calls


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result
