"""Programs: run on a bundle, with a time limit, alone or as several ranks."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from transparity.errors import shown
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.report.text import reason
from transparity_conformance.running.process.child import TIMEOUT, signal_name, stop_group

PATIENCE = 0.02
"""Seconds between looks at programs that run."""

TAIL = 2000
"""Bytes that are kept of the end of a program's standard error."""


@dataclass(frozen=True)
class Completed:
    """The end of a program."""

    actual: Path
    """The file that it should have written."""
    failure: str | None
    """The reason of its failure, in one sentence; None if it ended with the exit code 0."""


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
    return run_together(command, bundle, [(Path(actual), {})], timeout)[0]


def run_together(
    command: str, bundle: str | Path, copies: Sequence[tuple[Path, Mapping[str, str]]], timeout: float
) -> list[Completed]:
    """Run a program several times at once, each with a file of its own to write and its own environment; when one
    fails, the others, which may wait for it, are stopped. Otherwise as `run_command`."""
    programs: list[_Program] = []
    try:
        for number, (actual, environment) in enumerate(copies):
            who = f"Rank {number} of the command" if len(copies) > 1 else "The command"
            programs.append(_Program(command, Path(bundle), actual, environment, who))
        deadline = time.monotonic() + timeout
        while any(program.is_running for program in programs) and not any(program.failed for program in programs):
            if time.monotonic() > deadline:
                break
            time.sleep(PATIENCE)
        first = next((program for program in programs if program.failed), None)
        return [program.completed(timeout, first) for program in programs]
    finally:
        for program in programs:
            stop_group(program.process)


class _Program:
    """One run of a program."""

    def __init__(self, command: str, bundle: Path, actual: Path, environment: Mapping[str, str], who: str) -> None:
        self.command, self.actual, self.who = command, actual, who
        arguments = command_line(command, bundle, actual)
        try:
            self.process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=os.environ | environment,
            )
        except (OSError, ValueError) as error:
            raise BundleError(f"The command {shown(command)} cannot be started: {reason(error)}.") from None
        assert self.process.stderr is not None
        self.tail = _Tail(self.process.stderr)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def failed(self) -> bool:
        return bool(self.process.poll())

    def completed(self, timeout: float, first: _Program | None) -> Completed:
        """The end of the program, which is that of the `first` that failed if it waited for it."""
        code, named = self.process.poll(), f"{self.who} {shown(self.command)}"
        if code == 0:
            return Completed(self.actual, None)
        if code is None and first is not None:
            return Completed(self.actual, first.completed(timeout, None).failure)
        if code is None:
            return Completed(self.actual, f"{named} was stopped after {timeout:g} s.")
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with the exit code {code}"
        last = self.tail.last_line()
        return Completed(self.actual, f"{named} {how}{f', with the message: {last}' if last else ''}.")


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
