"""The process of a candidate; the process is paused while another candidate runs."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import KERNEL_VARIABLES, ROOT, THREAD_VARIABLES, python_path
from benchmarks.race.candidates import Candidate

SILENCE_LIMIT = 1800.0
"""The seconds without an answer after which a process is killed."""

JAX = {
    "cpu": {"JAX_PLATFORMS": "cpu"},
    "cuda": {"JAX_DEFAULT_MATMUL_PRECISION": "highest", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
}
"""Environment variables for JAX: no GPU in CPU races; float32 instead of TF32, and memory as needed, on a GPU."""


@dataclass(frozen=True)
class Place:
    folder: Path
    threads: int
    device: str


class Process:
    def __init__(self, candidate: Candidate, place: Place) -> None:
        order = {name: getattr(candidate, name) for name in ("needs", "build", "choices")}
        order |= {
            "held": not candidate.is_limit,
            "folder": str(place.folder),
            "threads": place.threads,
            "device": place.device,
        }
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.race.worker", json.dumps(order)],
            cwd=candidate.root or ROOT,
            env=environment(candidate, place.threads, place.device),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            process_group=0,  # so that the system ends even paused processes if this process is killed
        )

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        alarm, begin = threading.Timer(SILENCE_LIMIT, self.process.kill), time.monotonic()
        alarm.start()
        line = self.process.stdout.readline()
        alarm.cancel()
        late = time.monotonic() - begin >= SILENCE_LIMIT
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"failed": f"the process printed nothing for {SILENCE_LIMIT:g} s" if late else self.died_of()}

    def died_of(self) -> str:
        code = self.process.wait()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        self.errors.seek(0)
        written = [line.strip() for line in self.errors if line.strip()]
        return f"its process ended {how}" + (f" ({written[-1]})" if written else "")

    def run(self) -> dict[str, Any]:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self._signal("SIGCONT")
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        answer = self.answer()
        self.pause()
        return answer

    def pause(self) -> None:
        """Pause the process, because even its waiting threads may use cores that the running candidate needs."""
        self._signal("SIGSTOP")

    def _signal(self, name: str) -> None:
        if hasattr(signal, name) and self.process.poll() is None:
            self.process.send_signal(getattr(signal, name))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]


def environment(candidate: Candidate, threads: int, device: str) -> dict[str, str]:
    asked = dict.fromkeys(THREAD_VARIABLES, str(threads)) | JAX[device]
    asked["PYTHONPATH"] = python_path(candidate.root or ROOT)
    wanted = {name: value.format(threads=threads) for name, value in candidate.environment.items()}
    inherited = {name: value for name, value in os.environ.items() if name not in KERNEL_VARIABLES}
    return inherited | asked | wanted
