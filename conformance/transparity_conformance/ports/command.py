"""Ports that are programs: run on a bundle, with a time limit, and never trusted to end well."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.ports.bundle.bundle import ACTUAL, Bundle, export_bundle, judge_bundle, read_actual
from transparity_conformance.report.report import Report

TIMEOUT = 300.0
"""Seconds."""

LAST_WORDS = 2000
"""So many bytes of what a program says on its way out are kept."""


@dataclass(frozen=True)
class Run:
    """How a program fared."""

    actual: Path
    """Where it was told to write."""
    failure: str | None
    """What went wrong, in one sentence; None if it ended as it should."""


def check_command(
    command: str,
    name: str,
    config: TransformerConfig,
    *,
    dtype: str = "float32",
    logits_only: bool = False,
    timeout: float = TIMEOUT,
    progress: Progress | None = None,
    sections: Collection[str] = (),
) -> Report:
    """Check a program: what it wrote is judged however it ended, but unless it ended well it cannot agree. It is given
    a bundle with `sections`.

    Raises `BundleError` if it wrote nothing that can be judged.
    """
    with tempfile.TemporaryDirectory(prefix="transparity-") as folder:
        bundle = export_bundle(config, Path(folder, "bundle"), name=name, dtype=dtype, sections=sections)
        if progress is not None:
            progress("running the program", 0, 1)
        run = run_command(command, Path(folder, "bundle"), Path(folder, ACTUAL), timeout)
        said = _said(command, run, bundle)
    stopped = run.failure is not None
    report = judge_bundle(bundle, said, logits_only=logits_only, progress=progress, stopped=stopped)
    if run.failure is None:
        return report
    verdict = "inconclusive" if report.verdict == "agrees" else report.verdict
    return dataclasses.replace(report, verdict=verdict, notes=(run.failure, *report.notes))


def _said(command: str, run: Run, bundle: Bundle) -> dict[str, dict[str, np.ndarray]]:
    """What a program wrote; of one that was stopped, what is whole in a file that is not."""
    if not run.actual.exists():
        ended = f"The command {command!r} ended well" if run.failure is None else run.failure.removesuffix(".")
        raise BundleError(f"{ended}, but wrote no {run.actual.name}.")
    try:
        return read_actual(run.actual, bundle, cut=run.failure is not None)
    except BundleError as error:
        if run.failure is None:
            raise
        raise BundleError(f"{run.failure.removesuffix('.')}; {error}") from None


def run_command(command: str, bundle: str | Path, actual: str | Path, timeout: float = TIMEOUT) -> Run:
    """Run `command` on the folder `bundle`; it should write the file `actual`.

    `{bundle}` and `{actual}` in the command stand for the two paths; without either, they are its last arguments. No
    shell reads the command. After `timeout` seconds the program is stopped with all that it started.
    Raises `BundleError` if it cannot be started.
    """
    arguments = command_line(command, Path(bundle), Path(actual))
    try:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BundleError(f"The command {command!r} cannot be started: {reason}.") from None
    assert process.stderr is not None
    words = _LastWords(process.stderr)
    try:
        process.wait(timeout)
        failure = _ended(command, process.returncode, words)
    except subprocess.TimeoutExpired:
        failure = f"The command {command!r} was stopped after {timeout:g} s."
    finally:
        _stop(process)
    return Run(Path(actual), failure)


def command_line(command: str, bundle: Path, actual: Path) -> list[str]:
    """The command as a program and its arguments."""
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise BundleError(f"The command {command!r} cannot be read: {str(error).rstrip('.').lower()}.") from None
    if not parts:
        raise BundleError("The command is empty; expected a program and its arguments.")
    paths = {"{bundle}": str(bundle), "{actual}": str(actual)}
    if not any(place in part for part in parts for place in paths):
        return [*parts, *paths.values()]
    for place, path in paths.items():
        parts = [part.replace(place, path) for part in parts]
    return parts


class _LastWords:
    """The end of what a stream says; the rest is thrown away, for it may be without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.said = b""
        self.stream = stream
        self.thread = threading.Thread(target=self._listen, daemon=True)
        self.thread.start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self.stream:
            while heard := os.read(self.stream.fileno(), 2**16):
                self.said = (self.said + heard)[-LAST_WORDS:]

    def line(self) -> str:
        """The last line that says something."""
        self.thread.join(1)
        lines = [line.strip() for line in self.said.decode(errors="replace").splitlines() if line.strip()]
        said = lines[-1] if lines else ""
        return "".join(character for character in said if character.isprintable())[:200].rstrip(".")


def _ended(command: str, code: int, words: _LastWords) -> str | None:
    if code == 0:
        return None
    how = f"was killed by {_signal(-code)}" if code < 0 else f"ended with the exit code {code}"
    said = words.line()
    return f"The command {command!r} {how}{f', saying: {said}' if said else ''}."


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"the signal {number}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Kill the program, and what it started: a child that lives on could still be writing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
