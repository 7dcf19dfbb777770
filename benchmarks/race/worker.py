"""One candidate on one workload, in a process of its own: `python -m benchmarks.race.worker ORDER`.

It imports, builds, runs twice, is held to the oracle, and says so in one line of JSON. Then, for each line on its
standard input, it runs once and says how long that took. What libraries print goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO


def main(order: dict[str, Any], commands: TextIO, answers: TextIO) -> None:
    """Do what `order` says, and answer."""
    try:
        answer, run = prepared(order)
        _say(answers, answer)
        for _ in commands:
            _say(answers, {"seconds": seconds(run, order["device"])})
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is its result
        _say(answers, {"failed": f"{type(error).__name__}: {error}"})


def prepared(order: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """How long it took until the candidate was warm, and how far its result is from what it should be."""
    pin(order["threads"])
    import_seconds = _clocked(lambda: [importlib.import_module(name) for name in order["needs"]])[0]

    from benchmarks.race.oracles import conformity, read_task
    from benchmarks.race.task import WORK, Limit, Task

    folder = Path(order["folder"])
    workload, parameters, inputs = read_task(folder)
    task = Task(workload, parameters, inputs, str(folder), order["device"])
    module, _, name = order["build"].partition(":")
    build = getattr(importlib.import_module(module), name)
    build_seconds, run = _clocked(lambda: build(task, **order["choices"]))
    del task, parameters
    first_seconds, result = _clocked(run)
    peak = peak_bytes()
    held = [conformity(folder, workload, result)] if order["held"] else []
    del result
    warm_seconds, result = _clocked(run)
    held += [conformity(folder, workload, result)] if order["held"] else []
    return {
        "import_seconds": import_seconds,
        "build_seconds": build_seconds,
        "first_seconds": first_seconds,
        "warm_seconds": warm_seconds,
        "peak_bytes": peak,
        "work": WORK if isinstance(run, Limit) else None,
        "conformity": max(held, key=lambda item: item["share"], default=None),
    }, run


def pin(threads: int) -> None:
    """To so many of the cores that the process may use: every library asks for them, whatever variables it heeds."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def seconds(run: Any, device: str) -> float:
    """How long one call takes; on a CUDA device of PyTorch, between two events on it. A limit says it itself."""
    from benchmarks.race.task import Limit

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
    """The most memory that the process has held so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _clocked(call: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(json.loads(sys.argv[1]), sys.stdin, said)
