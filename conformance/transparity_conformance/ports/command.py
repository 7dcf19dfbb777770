"""Ports that are programs: run on a bundle, with a time limit, and judged however they end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Located, Progress, silent, untold
from transparity_conformance.diagnosis.search.clock import BUDGET
from transparity_conformance.ports.bundle.bundle import ACTUAL, Bundle, judge_bundle
from transparity_conformance.ports.bundle.reading import read_actual
from transparity_conformance.ports.bundle.writing import export_bundle
from transparity_conformance.ports.known import Known
from transparity_conformance.ports.process.isolation import TIMEOUT, signal_name, stop_group
from transparity_conformance.report.report import Report
from transparity_conformance.report.text import reason

TAIL = 2000
"""Bytes that are kept of the end of a program's standard error."""


@dataclass(frozen=True)
class Completed:
    """The end of a program."""

    actual: Path
    """The file that it should have written."""
    failure: str | None
    """The reason of its failure, in one sentence; None if it ended with the exit code 0."""


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
    budget: float = BUDGET,
    located: Located = untold,
) -> Report:
    """Check a program: its outputs are judged however it ended, but unless it ended well it cannot agree.

    Args:
        command: the program and its arguments, as for `run_command`.
        name: the preset's name, or `config`.
        config: the configuration that the program is checked on.
        dtype: the precision that it computes in.
        logits_only: compare the logits alone.
        timeout: seconds that it has.
        progress, budget, located: as for `check`.
        sections: optional sections of its bundle.

    Raises `BundleError` if it wrote nothing that can be judged.
    """
    with tempfile.TemporaryDirectory(prefix="transparity-") as folder:
        bundle = export_bundle(config, Path(folder, "bundle"), name=name, dtype=dtype, sections=sections)
        (progress or silent)("running the program", 0, 1)
        completed = run_command(command, Path(folder, "bundle"), Path(folder, ACTUAL), timeout)
        outputs = _outputs(command, completed, bundle)
    failure, known = completed.failure, Known(located)
    options: dict[str, Any] = {"logits_only": logits_only, "progress": progress, "budget": budget}
    with known.kept():
        report = judge_bundle(bundle, outputs, stopped=failure is not None, port=command, located=known, **options)
    if failure is None:
        return report
    verdict = "inconclusive" if report.verdict == "agrees" else report.verdict
    return dataclasses.replace(report, verdict=verdict, notes=(failure, *report.notes))


def _outputs(command: str, completed: Completed, bundle: Bundle) -> dict[str, dict[str, np.ndarray]]:
    """The outputs that a program wrote; the complete ones, if it was stopped while it wrote them."""
    actual, failure = completed.actual, completed.failure
    if not os.path.lexists(actual):
        ended = f"The command {shown(command)} ended well" if failure is None else failure.removesuffix(".")
        raise BundleError(f"{ended}, but wrote no {actual.name}.")
    try:
        return read_actual(actual, bundle, cut=failure is not None)
    except BundleError as error:
        if failure is None:
            raise
        raise BundleError(f"{failure.removesuffix('.')}; {error}") from None


def run_command(command: str, bundle: str | Path, actual: str | Path, timeout: float = TIMEOUT) -> Completed:
    """Run a program on a bundle.

    Args:
        command: the program and its arguments, split as a shell does, but without a shell. `{bundle}` and `{actual}`
            are replaced by the two paths; without either, the paths are the last arguments.
        bundle: the folder that the program reads.
        actual: the file that it should write.
        timeout: seconds after which it is stopped, with all processes that it started.

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
        raise BundleError(f"The command {shown(command)} cannot be started: {reason(error)}.") from None
    assert process.stderr is not None
    tail = _Tail(process.stderr)
    try:
        process.wait(timeout)
        failure = _ended(command, process.returncode, tail)
    except subprocess.TimeoutExpired:
        failure = f"The command {shown(command)} was stopped after {timeout:g} s."
    finally:
        stop_group(process)
    return Completed(Path(actual), failure)


def command_line(command: str, bundle: Path, actual: Path) -> list[str]:
    """The command as a program and its arguments."""
    try:
        parts = shlex.split(command)
    except ValueError as error:
        raise BundleError(f"The command {shown(command)} cannot be read: {str(error).rstrip('.').lower()}.") from None
    if not parts:
        raise BundleError("The command is empty; expected a program and its arguments.")
    paths = {"{bundle}": str(bundle), "{actual}": str(actual)}
    if not any(place in part for part in parts for place in paths):
        return [*parts, *paths.values()]
    for place, path in paths.items():
        parts = [part.replace(place, path) for part in parts]
    return parts


class _Tail:
    """The end of a stream that is read in a thread; the rest is thrown away, for it may be without end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.content = b""
        self.stream = stream
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self.stream:
            while chunk := os.read(self.stream.fileno(), 2**16):
                self.content = (self.content + chunk)[-TAIL:]

    def last_line(self) -> str:
        """The last line that is not empty, as printable characters."""
        self.thread.join(1)
        lines = [line.strip() for line in self.content.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        return "".join(character for character in last if character.isprintable())[:200].rstrip(".")


def _ended(command: str, code: int, tail: _Tail) -> str | None:
    if code == 0:
        return None
    how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with the exit code {code}"
    last = tail.last_line()
    return f"The command {shown(command)} {how}{f', with the message: {last}' if last else ''}."
