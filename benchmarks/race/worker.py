"""One candidate on one workload, in a process of its own: `python -m benchmarks.race.worker ORDER`.

It imports, builds, runs twice, compares both results with the oracle, and writes one line of JSON. Then it runs once
for each line of its standard input, and writes how long that took. The output of libraries goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def main(order: dict[str, Any], commands: TextIO, answers: TextIO) -> None:
    """Carry out `order`, then the commands."""
    try:
        answer, run = prepared(order)
        _write(answers, answer)
        for _ in commands:
            _write(answers, {"seconds": seconds(run, order["device"])})
    except Exception as error:  # noqa: BLE001 - any exception of a candidate is its result
        _write(answers, {"failed": f"{type(error).__name__}: {error}"})


def prepared(order: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], Any]]:
    """The seconds until the candidate was warm and its conformity, and its run."""
    pin(order["threads"])
    import_seconds, _ = _clocked(lambda: [importlib.import_module(name) for name in order["needs"]])

    from benchmarks.oracles import conformity, read_oracle, read_task, worst
    from benchmarks.race.limits import WORK, Limit

    folder = Path(order["folder"])
    task = read_task(folder, order["device"])
    module, _, name = order["build"].partition(":")
    build = getattr(importlib.import_module(module), name)
    build_seconds, run = _clocked(lambda: build(task, **order["choices"]))
    del task
    first_seconds, result = _clocked(run)
    peak = peak_bytes()
    held = [conformity(read_oracle(folder), result)] if order["held"] else []
    del result
    warm_seconds, result = _clocked(run)
    held += [conformity(read_oracle(folder), result)] if order["held"] else []
    return {
        "import_seconds": import_seconds,
        "build_seconds": build_seconds,
        "first_seconds": first_seconds,
        "warm_seconds": warm_seconds,
        "peak_bytes": peak,
        "work": WORK if isinstance(run, Limit) else None,
        "conformity": worst(held) if held else None,
    }, run


def pin(threads: int) -> None:
    """Use this many of the cores at hand: every library obeys this, whatever variables it reads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def seconds(run: Callable[[], Any], device: str) -> float:
    """The duration of one call; on a CUDA device of PyTorch, between two events. A limit returns it itself."""
    from benchmarks.race.limits import Limit

    if isinstance(run, Limit):
        return run()
    if device == "cuda" and "torch" in sys.modules:
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3
    return _clocked(run)[0]


def peak_bytes() -> int:
    """The peak memory of this process so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(json.loads(sys.argv[1]), sys.stdin, answers)
