"""The one door to a stranger's code: every call of a port goes through `call_stranger`.

A port may raise anything, end the process, or change what the whole process shares. What it raises becomes a sentence;
NumPy's error state, the warning filters and the standard streams are put back. A process that ends cannot be caught
here: `ports.isolation` runs the port in a process of its own.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transparity.errors import TransparityError
from transparity_conformance.report.text import describe_error


class PortError(TransparityError):
    """The port itself failed, or returned something that is no answer."""


class PortProcessError(PortError):
    """The process of the port ended, or gave no answer in time."""


class PortCallError(PortError):
    """The port raised an exception, which the message describes in one clause."""


def call_stranger(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a port's function and return its result.

    Raises `PortCallError` for whatever it raises, exits of the process and panics included; `PortProcessError` if its
    own process ended. Only the user's Ctrl-C passes.
    """
    try:
        with _shared_state_kept():
            return function(*args, **named)
    except (KeyboardInterrupt, PortError):
        raise
    except BaseException as error:
        raise PortCallError(describe_raised(error)) from error


def describe_raised(error: BaseException) -> str:
    """An exception in one clause, with the file and the line where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rpartition('/')[2]}, line {frames[-1].lineno})" if len(frames) > 1 else ""
    return describe_error(error) + where


@contextlib.contextmanager
def _shared_state_kept() -> Iterator[None]:
    streams = sys.stdin, sys.stdout, sys.stderr
    with np.errstate(), warnings.catch_warnings():
        try:
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams
