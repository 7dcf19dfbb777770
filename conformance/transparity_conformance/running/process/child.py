"""A process of a port: started, sent requests, and stopped with all that it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from typing import Any

from transparity_conformance.capabilities.stranger import PortCallError, PortProcessError
from transparity_conformance.running.loading import LoadError, UsageError
from transparity_conformance.running.process.wire import Closed, largest_answer, receive_answer, send_request

TIMEOUT = 300.0
"""Seconds that a port has for the answer to one call, or a program for all of its work."""

LONGEST = 1e6
"""Eleven days: sockets wait for at most 2³¹ milliseconds."""


def checked_timeout(seconds: float | None) -> float:
    """A timeout, or the default for None; raises `UsageError` for one that never ends, such as NaN."""
    if seconds is None:
        return TIMEOUT
    if not 0 < seconds <= LONGEST:
        raise UsageError(f"The timeout is {seconds:g}; expected seconds above 0, at most {LONGEST:g}.")
    return seconds


class PortProcess:
    """A process of a port, which answers one request after the other.

    Args:
        spec, timeout, adapter: as for `ProcessGroup`.
        environment: variables that the process has beside those of this one.
        who: the process in messages.
    """

    def __init__(
        self,
        spec: str,
        timeout: float,
        adapter: str | None = None,
        environment: Mapping[str, str] | None = None,
        who: str = "The port",
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
                env=os.environ | environment if environment else None,
            )
        self.folders: list[str] = []
        self.stop = weakref.finalize(self, _end, self.process, self.connection, self.folders)
        self._send(largest_answer(), "load", spec, adapter)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def ask(self, what: str, name: str, *arguments: Any, largest: int | None = None) -> None:
        """Send a request, whose answer is to be `received`."""
        numbers = [self.released.pop() for _ in range(len(self.released))]
        if numbers:
            self._send(0, "release", numbers)
            self.received(what)
        self._send(min(largest or largest_answer(), largest_answer()), name, *arguments)

    def _send(self, largest: int, name: str, *arguments: Any) -> None:
        try:
            self.connection.settimeout(self.timeout)
            send_request(self.connection, (name, arguments, largest))
        except OSError:  # the process has ended or does not read: reading its answer tells which
            pass

    def received(self, what: str, deadline: float | None = None) -> Any:
        """The answer to a request, by the time `deadline`; None: within the timeout from now."""
        try:
            deadline = deadline or time.monotonic() + self.timeout
            kind, *content = receive_answer(self.connection, deadline, largest_answer(), lambda: self.is_running)
        except TimeoutError:
            self.stop()
            raise PortTimeoutError(
                f"{self.who} gave no answer to {what} within {self.timeout:g} s and was stopped; --timeout gives it "
                "more."
            ) from None
        except (OSError, Closed):
            raise self._died(what) from None
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError, MemoryError) as error:
            self.stop()
            raise PortProcessError(f"{self.name} answered {what} with what is no answer: {error}.") from None
        if kind == "returned":
            return content[0]
        if kind == "raised":
            raise PortCallError(str(content[0]))
        self.stop()
        raise LoadError(str(content[0]))

    def _died(self, what: str) -> PortProcessError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        code = self.process.returncode
        self.stop()
        if code is None:
            how = "closed its connection to the checker"
        else:
            how = f"was killed by {signal_name(-code)}" if code < 0 else f"ended with the exit code {code}"
        return PortProcessError(f"{self.name} {how} at {what}; expected an answer.")

    def folder(self) -> str:
        """A folder for files that the process reads; it is removed after the process has ended."""
        if not self.folders:
            self.folders.append(tempfile.mkdtemp(prefix="transparity-"))
        return self.folders[0]


def _end(process: subprocess.Popen[bytes], connection: socket.socket, folders: list[str]) -> None:
    connection.close()
    stop_group(process)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


class PortTimeoutError(PortProcessError):
    """The port gave no answer in time."""


def signal_name(number: int) -> str:
    """`SIGKILL`, or `the signal 40` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"the signal {number}"


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and all processes that it started: one that lives on could still be writing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()
