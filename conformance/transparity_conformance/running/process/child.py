"""Child processes with a time limit: ports that answer requests, and programs that read a bundle of inputs."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from transparity.errors import UsageError, shown
from transparity.text import reason
from transparity_conformance import threads
from transparity_conformance.cache import compiled, quickly
from transparity_conformance.capabilities.port_calls import PortCallError, PortProcessError
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process import requests
from transparity_conformance.running.process.wire import Closed, Handle, largest_answer, receive_answer, send_request

TIMEOUT = 300.0
"""The default timeout in seconds for a call of a port, or for a program."""

LONGEST_TIMEOUT = 1e6
"""The longest timeout, 11 days, because sockets wait for at most 2³¹ milliseconds."""


def checked_timeout(seconds: float | None) -> float:
    if seconds is None:
        return TIMEOUT
    if not 0 < seconds <= LONGEST_TIMEOUT:
        raise UsageError(f"The timeout is {seconds:g}; expected seconds above 0, at most {LONGEST_TIMEOUT:g}.")
    return seconds


QUIET = {"TQDM_DISABLE": "1"}
"""Environment variables that hide progress bars, unless the user's environment sets them."""


MALFORMED = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, MemoryError)
"""The exceptions that decoding a malformed answer may raise."""


class PortProcess:
    """The process of a port, which answers one request at a time. `environment` contains additional environment
    variables. Messages call the process `who`. `ProcessGroup` explains `spec`, `timeout`, `adapter` and `is_small`."""

    def __init__(
        self,
        spec: str,
        timeout: float,
        adapter: str | None,
        environment: Mapping[str, str],
        who: str,
        *,
        is_small: bool,
    ) -> None:
        self.timeout, self.who = timeout, who
        self.name = "The port's process" if who == "The port" else f"The process of {who[0].lower()}{who[1:]}"
        self.released: list[int] = []
        ours, theirs = socket.socketpair()
        with theirs:
            self.connection = ours
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "transparity_conformance.running.process.worker", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**QUIET, **compiled(), **os.environ, **(threads.variables() if is_small else {}), **environment},
            )
        self.folders: list[str] = []
        self.stop = weakref.finalize(self, _end, self.process, self.connection, self.folders)
        self.ask(requests.load, spec, adapter, quickly() if is_small else {})

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def processor_seconds(self) -> float | None:
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def ask(self, function: Callable[..., Any], *arguments: Any, largest: int | None = None) -> None:
        """Send a request: a function that the process should call, and the numbers of objects that the process should
        free. To wait for the answer, call `received`."""
        numbers = [self.released.pop() for _ in range(len(self.released))]
        most = min(largest or largest_answer(), largest_answer())
        try:
            self.connection.settimeout(self.timeout)
            send_request(self.connection, (function, arguments, most, numbers))
        except OSError:  # the process has ended or does not read; `received` reports the reason
            pass

    def received(self, what: str, deadline: float | None = None) -> Any:
        """Return the answer to a request; wait until `deadline` (by default, for `timeout` seconds)."""
        try:
            deadline = deadline or time.monotonic() + self.timeout
            is_running = lambda: self.is_running
            kind, *content = receive_answer(self.connection, deadline, largest_answer(), is_running, self._handle)
        except TimeoutError:
            self.stop()
            raise PortTimeoutError(
                f"{self.who} did not finish {what} within {self.timeout:g} s and was stopped; --timeout gives it more "
                "time."
            ) from None
        except (OSError, Closed):
            raise self._died(what) from None
        except MALFORMED as error:
            self.stop()
            raise PortProcessError(f"{self.name} sent a malformed reply during {what}: {error}.") from None
        if kind == "returned":
            return content[0]
        if kind == "raised":
            raise PortCallError(str(content[0]))
        self.stop()
        raise LoadError(str(content[0]))

    def _handle(self, number: int, kind: str) -> Handle:
        """Return a handle; after the checker has freed the handle, the process frees the object."""
        handle = Handle(number, kind)
        weakref.finalize(handle, self.released.append, handle.number)
        return handle

    def _died(self, what: str) -> PortProcessError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        self.stop()
        how = "closed its connection to the checker" if code is None else _how_ended(code)
        return PortProcessError(f"{self.name} {how} during {what}; run the port without the checker to see why.")

    def folder(self) -> str:
        """Return a temporary folder for files that the process reads; the folder is removed with the process."""
        if not self.folders:
            self.folders.append(tempfile.mkdtemp(prefix="transparity-"))
        return self.folders[0]


def _end(process: subprocess.Popen[bytes], connection: socket.socket, folders: list[str]) -> None:
    connection.close()
    stop_group(process)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class PortTimeoutError(PortProcessError):
    """A port does not answer within the timeout."""


def _how_ended(code: int) -> str:
    if code >= 0:
        return f"ended with the exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by the signal {-code}"


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all its descendants, which could otherwise continue to write files."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


PATIENCE = 0.02
"""The seconds between two polls of running programs."""

TAIL = 2000
"""The number of bytes to keep from the end of a program's standard error."""


def run_together(command: str, bundle: Path, copies: Sequence[tuple[Path, Mapping[str, str]]], timeout: float) -> str:
    """Run a program on the folder `bundle`, with several copies in parallel. Each of `copies` has an output file and
    additional environment variables. `{bundle}` and `{actual}` in `command` stand for the two paths; if the command
    contains neither text, both paths are appended. No shell runs the command. If one copy fails or takes more than
    `timeout` seconds, stop all copies, because they may wait for the failed copy. Return a sentence with the reason of
    the failure; empty if every exit code is 0. Raise `BundleError` if the program cannot be started."""
    programs: list[tuple[subprocess.Popen[bytes], _Tail]] = []
    deadline = time.monotonic() + timeout
    try:
        for actual, environment in copies:
            programs.append(_started(command, bundle, actual, environment))
        codes: list[int | None] = [None]
        while None in codes and not any(codes) and time.monotonic() < deadline:
            time.sleep(PATIENCE)
            codes = [process.poll() for process, _ in programs]
        failed = next((number for number, code in enumerate(codes) if code), codes.index(None) if None in codes else -1)
        if failed < 0:
            return ""
        how, last = f"was stopped after {timeout:g} s", ""
        if (code := codes[failed]) is not None:
            how, last = _how_ended(code), programs[failed][1].last_line()
        who = f"Rank {failed} of the command" if len(copies) > 1 else "The command"
        return f"{who} {shown(command)} {how}{f', with the message: {last}' if last else ''}."
    finally:
        for process, _ in programs:
            stop_group(process)


def _started(
    command: str, bundle: Path, actual: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], _Tail]:
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    arguments, variables = command_line(command, bundle, actual), os.environ | environment
    try:
        process = subprocess.Popen(arguments, **pipes, start_new_session=True, env=variables)
    except (OSError, ValueError) as error:
        raise BundleError(f"The command {shown(command)} cannot be started: {reason(error)}.") from None
    assert process.stderr is not None
    return process, _Tail(process.stderr)


def command_line(command: str, bundle: Path, actual: Path) -> list[str]:
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
    """The last bytes of a stream, which a thread reads; the stream may be endless."""

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
        self.thread.join(1)
        lines = [line.strip() for line in self.content.decode(errors="replace").splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        return "".join(character for character in last if character.isprintable())[:200].rstrip(".")
