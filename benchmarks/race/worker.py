"""The program of a candidate's process: `python -m benchmarks.race.worker ORDER` runs one candidate on one workload.

The program imports and builds the candidate, runs it twice, compares both results with the expected result, and writes
a line of JSON. Then, for each line of standard input, the program times the candidate and writes the duration. The
libraries' output goes to standard error.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from benchmarks.environment import memory
from benchmarks.race.timing import clocked, seconds


def main(order: dict[str, Any], commands: TextIO, answers: TextIO) -> None:
    try:
        answer, run = prepared(order)
        _write(answers, answer)
        for _ in commands:
            _write(answers, {"seconds": seconds(run, order["device"]) if order["held"] else run()})
    except Exception as error:  # noqa: BLE001 - any exception of a candidate is its result
        _write(answers, {"failed": f"{type(error).__name__}: {error}"})


def prepared(order: dict[str, Any]) -> tuple[dict[str, Any], Callable[[], Any]]:
    """Return the first answer (startup times, peak memory, conformity) and the function that runs the candidate."""
    if hasattr(os, "sched_setaffinity"):  # all libraries respect this restriction
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: order["threads"]])
    import_seconds, _ = clocked(lambda: [importlib.import_module(name) for name in order["needs"]])

    from benchmarks.oracles import conformity, read_oracle, read_task, worst

    folder = Path(order["folder"])
    task = read_task(folder, order["device"])
    module, _, name = order["build"].partition(":")
    run = getattr(importlib.import_module(module), name)(task, **order["choices"])
    del task
    first_seconds, result = clocked(run)
    peak, on_device = peak_bytes(), device_peak(order["device"])
    held = [conformity(read_oracle(folder), result)] if order["held"] else []
    del result
    held += [conformity(read_oracle(folder), run())] if order["held"] else []
    return {
        "import_seconds": import_seconds,
        "first_seconds": first_seconds,
        "peak_bytes": peak,
        "device_peak_bytes": on_device,
        "conformity": worst(held) if held else None,
    }, run


def device_peak(device: str) -> int | None:
    """Return the peak GPU memory in bytes, as PyTorch or JAX reports it; None on a CPU."""
    if device == "cpu":
        return None
    if "torch" in sys.modules:
        import torch

        return torch.cuda.max_memory_allocated()
    import jax

    return int(jax.devices(device)[0].memory_stats()["peak_bytes_in_use"])


def peak_bytes() -> int:
    try:
        return memory("VmHWM")
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _write(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    main(json.loads(sys.argv[1]), sys.stdin, answers)
