"""Workers side by side: all are alive, one runs at a time, in an order that is shuffled anew in each round."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.race.candidates import BASELINE, Candidate
from benchmarks.race.workloads import Workload

ROOT = Path(__file__).parents[2]

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

PATIENCE, LEAST = 60.0, 3
"""A candidate that has run for so many seconds, and so many times, runs no more."""

LONGEST = 1800.0
"""For so many seconds a candidate may be silent, getting ready or running; then it is ended."""

LIMIT_MEMORY = 700_000_000
"""About what a process needs that measures a limit."""

SHARE_OF_MEMORY = 0.8
"""So much of the free memory is filled with workers that are alive at once."""


@dataclass
class Result:
    """What came of a candidate on a workload."""

    candidate: Candidate
    workload: Workload
    heat: int = 0
    """Which of the workers that were alive together it was one of: counted from 0, finals from −1 down."""
    ready: dict[str, Any] | None = None
    """What its worker said when it was warm."""
    seconds: dict[tuple[int, int], float] = field(default_factory=dict)
    """By heat and round."""
    failed: str = ""
    """Why there are none, in one sentence."""


class Worker:
    """A process that runs a candidate when it is told to, and is stopped while another does."""

    def __init__(self, candidate: Candidate, folder: Path, threads: int, device: str) -> None:
        order = {
            "needs": candidate.needs,
            "build": candidate.build,
            "choices": candidate.choices,
            "held": candidate.held,
            "folder": str(folder),
            "threads": threads,
            "device": device,
        }
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.race.worker", json.dumps(order)],
            cwd=ROOT,
            env=environment(candidate, threads, device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            process_group=0,  # so that the system ends those that stand still, if this process is killed
        )

    def answer(self) -> dict[str, Any]:
        """The next thing that it says; what it died of, if it says nothing."""
        assert self.process.stdout is not None
        alarm, begin = threading.Timer(LONGEST, self.process.kill), time.monotonic()
        alarm.start()
        line = self.process.stdout.readline()
        alarm.cancel()
        late = time.monotonic() - begin >= LONGEST
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"failed": f"it said nothing for {LONGEST:g} s" if late else self.died_of()}

    def died_of(self) -> str:
        """How the process ended, and the last line that it wrote."""
        code = self.process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        self.errors.seek(0)
        written = [line.strip() for line in self.errors if line.strip()]
        return f"its process ended {how}" + (f" ({written[-1]})" if written else "")

    def go(self) -> dict[str, Any]:
        """Run once, while all others stand still."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.resume()
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        answer = self.answer()
        self.pause()
        return answer

    def pause(self) -> None:
        """Threads that wait for work may spin, and would take the cores from whoever runs."""
        if hasattr(signal, "SIGSTOP") and self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        if hasattr(signal, "SIGCONT") and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process, whatever it is at."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


JAX = {"cpu": {"JAX_PLATFORMS": "cpu"}, "cuda": {"JAX_DEFAULT_MATMUL_PRECISION": "highest"}}
"""JAX would take whatever device there is, and TF32 on one that has it; PyTorch takes neither unless it is told to."""


KERNEL_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""They hold a library to the kernels of another processor."""


def overridden() -> dict[str, str]:
    """The kernels that this process was told to use, and its workers are not: each library takes its best."""
    return {name: os.environ[name] for name in KERNEL_VARIABLES if name in os.environ}


def environment(candidate: Candidate, threads: int, device: str) -> dict[str, str]:
    """This process's, with the threads that were asked for, any kernel, and what the candidate wants besides."""
    path = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), str(ROOT)]))
    asked = dict.fromkeys(THREAD_VARIABLES, str(threads)) | JAX[device] | {"PYTHONPATH": path}
    wanted = {name: value.format(threads=threads) for name, value in candidate.environment.items()}
    free = {name: value for name, value in os.environ.items() if name not in KERNEL_VARIABLES}
    return free | asked | wanted


def heats(candidates: Sequence[Candidate], workload: Workload, memory: float) -> list[list[Candidate]]:
    """The candidates in as few groups as fit into `memory`, each with the limits and the baseline."""
    always = [candidate for candidate in candidates if candidate.is_limit] + baseline(candidates)
    needed = sum(LIMIT_MEMORY if candidate.is_limit else workload.memory for candidate in always)
    room = max(1, int((memory - needed) / workload.memory)) if memory < float("inf") else len(candidates)
    others = [candidate for candidate in candidates if candidate not in always]
    groups = [others[start : start + room] for start in range(0, len(others), room)] or [[]]
    return [[*always, *group] for group in groups]


def baseline(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidate that every heat has, in a list; the first one, where the usual one does not run."""
    runners = [candidate for candidate in candidates if not candidate.is_limit]
    return [candidate for candidate in runners if candidate.name == BASELINE] or runners[:1]


def orders(number: int, rounds: int, seed: int) -> Iterator[list[int]]:
    """In each round all `number` of them, shuffled anew."""
    shuffle = random.Random(seed)
    for _ in range(rounds):
        yield shuffle.sample(range(number), number)


def run_heat(
    candidates: Iterable[Candidate],
    workload: Workload,
    folder: Path,
    *,
    rounds: int,
    threads: int,
    device: str,
    heat: int,
    done: Callable[[str], None],
) -> list[Result]:
    """Start the workers one after the other, then let them run in turns. `done` is called at each step."""
    results, workers = [], []
    try:
        for candidate in candidates:
            done(f"{workload.name}: {candidate.name} gets ready")
            worker = Worker(candidate, folder, threads, device)
            workers.append(worker)
            results.append(_started(worker, Result(candidate, workload, heat)))
        for turn, order in enumerate(orders(len(workers), rounds, seed=heat)):
            for index in order:
                done(f"{workload.name}: {results[index].candidate.name}")
                if not results[index].failed and is_patient(results[index], turn):
                    _timed(workers[index], results[index], turn)
    finally:
        for worker in workers:
            worker.close()
    return results


def _started(worker: Worker, result: Result) -> Result:
    answer = worker.answer()
    worker.pause()
    if "failed" in answer:
        result.failed = one_sentence(answer["failed"])
        return result
    held = answer["conformity"]
    if held and not held["share"] <= 1:
        result.failed = f"refused: it differs by {held['error']:.3g}, beyond its budget of {held['budget']:.3g}"
    result.ready = answer
    return result


def is_patient(result: Result, turn: int) -> bool:
    """Whether a candidate runs once more: a slow one has fewer rounds, though never fewer than `LEAST`."""
    return turn < LEAST or sum(result.seconds.values()) < PATIENCE


def _timed(worker: Worker, result: Result, turn: int) -> None:
    answer = worker.go()
    if "failed" in answer:
        result.failed, result.seconds = one_sentence(answer["failed"]), {}
    else:
        result.seconds[result.heat, turn] = answer["seconds"]


def one_sentence(text: str, longest: int = 200) -> str:
    """The first line, cut where it is too long for a table."""
    line = text.strip().partition("\n")[0].rstrip(".")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def free_memory() -> float:
    """The bytes that may be filled with workers; all there are, where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float("inf")
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return SHARE_OF_MEMORY * available
