"""Calls of a port: all of them use `call_port`.

A port may raise anything, end the process, or change global state. Its exceptions become sentences. State that the
checker depends on is restored: NumPy's error state, warning filters, standard streams and the handler of Ctrl-C. Other
state is left to the port, which may need it: environment, folder, random state, a framework's default dtype.

An exit of the process, a closed file descriptor or a patched function cannot be undone here. These stay in the process
that `running.process.isolation` gives a port.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

import transparity
from transparity.errors import TransparityError
from transparity.text import describe_error
from transparity_conformance.listening.source import home


class PortError(TransparityError):
    """The port failed, or returned an invalid answer."""


class PortProcessError(PortError):
    """The process of the port ended, or did not answer in time."""


class PortCallError(PortError):
    """The port raised an exception, which the message describes in one clause."""


class ChangedInPlaceError(Exception):
    """The port changed its input tokens in place."""


def call_port(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a port's function and return its result.

    Raises `PortCallError` for any exception, including exits and panics, and `PortProcessError` if its own process
    ended. Raises `KeyboardInterrupt` only for the user's Ctrl-C, even if the port swallows it.
    """
    with _interrupts() as interrupts:
        try:
            with _shared_state_kept(), tokens_kept(args, named):
                return function(*args, **named)
        except PortError:
            raise
        except BaseException as error:
            raise PortCallError(describe_raised(error)) from error
        finally:
            if interrupts:
                raise interrupts[0]


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a port's function; None without one, as for compiled functions."""
    try:
        signature: inspect.Signature = call_port(inspect.signature, function)
    except PortCallError:
        return None
    return signature


def has_method(port: Any, name: str) -> bool:
    """Return whether a port offers the method `name`; a failing look-up counts as an offer that fails."""
    try:
        return callable(call_port(getattr, port, name, None))
    except PortCallError:
        return True


def describe_raised(error: BaseException) -> str:
    """Describe an exception in one clause, with the innermost line of the port, or of an installed package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if home(frame.filename) is not None]
    own = [frame for frame in frames if home(frame.filename) == "" and not _is_column(frame.filename)] or frames
    where = f" ({_shown_file(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if missing in EXTRAS:
        return f"{missing} is not installed{where}: {install(EXTRAS[missing])}"
    return describe_error(error) + where


EXTRAS = {
    "torch": "pytorch",
    "jax": "flax",
    "flax": "flax",
    "transformers": "hub",
    "equinox": "equinox",
    "keras": "keras",
    "mlx": "mlx",
    "mlx_lm": "mlx",
}
"""The extra of this project that installs a framework."""


def install(extra: str) -> str:
    """Return the command that installs an extra of this project."""
    return f'python -m pip install "transparity[{extra}]"'


def _is_column(file: str) -> bool:
    """Return whether a file is one of ours, run from a checkout and called by the port."""
    ours = PurePath(transparity.__file__).parent
    return PurePath(file).is_relative_to(ours) or any(part.startswith("transparity_") for part in PurePath(file).parts)


def _shown_file(file: str) -> str:
    """Return a path relative to the current folder; elsewhere the name, with its folder in installed packages."""
    path = PurePath(file)
    is_here = path.is_relative_to(Path.cwd()) and home(file) == ""
    return str(path.relative_to(Path.cwd()) if is_here else PurePath(*path.parts[-2 if home(file) else -1 :]))


@contextlib.contextmanager
def tokens_kept(args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[None]:
    """Raise `ChangedInPlaceError` if a call changes an integer array among its arguments."""
    given = {f"argument {index}": value for index, value in enumerate(args, 1)} | dict(named)
    arrays = {
        name: value for name, value in given.items() if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    }
    before = {name: value.tobytes() for name, value in arrays.items()}
    yield
    for name, value in arrays.items():
        if value.tobytes() != before[name]:
            raise ChangedInPlaceError(
                f"it changed {name} in place, which belongs to the caller; copy it before writing"
            )


@contextlib.contextmanager
def _shared_state_kept() -> Iterator[None]:
    streams = sys.stdin, sys.stdout, sys.stderr
    with np.errstate(), warnings.catch_warnings():
        try:
            sys.stdout = sys.stderr  # output of a port is not part of the report
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _interrupts() -> Iterator[list[BaseException]]:
    """Yield a list of Ctrl-C exceptions; any other `KeyboardInterrupt` was raised by the port.

    Python delivers Ctrl-C to the main thread, and only if that has a handler.
    """
    raised: list[BaseException] = []
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield raised
        return

    def handle(number: int, frame: Any) -> None:
        try:
            handler(number, frame)
        except BaseException as error:
            raised.append(error)
            raise

    signal.signal(signal.SIGINT, handle)
    try:
        yield raised
    finally:
        signal.signal(signal.SIGINT, handler)
