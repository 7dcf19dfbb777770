"""Calls of a port's code. All calls use `call_port`.

A port may raise any exception, end the process, or change global state. `call_port` turns exceptions into sentences.
`call_port` also restores the state on which the checker depends: NumPy's error state, warning filters, standard
streams, and the handler of Ctrl-C. The port may change other state, such as environment variables, the random state or
a default dtype.

Nothing can undo an exit of the process, a closed file descriptor or a patched function. Therefore,
`running.process.isolation` runs a port in its own process.
"""

import contextlib
import importlib.util
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
from transparity_conformance.listening.operation import home


class PortError(TransparityError):
    """The port fails, or returns an invalid result."""


class PortProcessError(PortError):
    """The port's process ended, did not answer in time, or sent an invalid answer."""


class PortCallError(PortError):
    """The port raised an exception, which the message describes in one clause."""


class ChangedInPlaceError(Exception):
    """The port changed its input tokens in place."""


def call_port(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function of the port. Raise `PortCallError` for every exception of the port, including `SystemExit`, and
    `PortProcessError` if the port's process ended. If the user pressed Ctrl-C, raise `KeyboardInterrupt`, even if the
    port caught this exception."""
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
    try:
        signature: inspect.Signature = call_port(inspect.signature, function)
    except PortCallError:
        return None
    return signature


def has_method(port: Any, name: str) -> bool:
    """Return whether a port has the method `name`. An attribute that raises when it is read counts as a method."""
    try:
        return callable(call_port(getattr, port, name, None))
    except PortCallError:
        return True


def describe_raised(error: BaseException) -> str:
    """Describe an exception in one clause, with the innermost line of the port's code or, without such a line, of a
    package."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if home(frame.filename) is not None]
    own = [frame for frame in frames if home(frame.filename) == "" and not _is_column(frame.filename)] or frames
    where = f" ({_shown_file(own[-1].filename)}, line {own[-1].lineno})" if own else ""
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    library = home(frames[-1].filename) if frames else None
    if library == "transformers" and isinstance(error, ImportError) and importlib.util.find_spec("torch") is None:
        missing = "torch"  # without PyTorch, transformers has no models
    if missing == "tensorflow" and library == "keras":  # Keras uses TensorFlow by default
        return f"{NOT_FOUND}tensorflow is not installed{where}: {install('torch')} and set KERAS_BACKEND=torch"
    if missing in EXTRAS:
        return f"{NOT_FOUND}{missing} is not installed{where}: {install(missing)}"
    return describe_error(error) + where


EXTRAS = {
    "torch": "pytorch",
    "jax": "flax",
    "flax": "flax",
    "optax": "flax",
    "transformers": "hub",
    "equinox": "equinox",
    "keras": "keras",
    "mlx": "mlx",
    "mlx_lm": "mlx",
    "onnx": "onnx",
    "onnxruntime": "onnx",
    "gguf": "gguf",
}
"""For each package, the extra of this project that installs the package."""

NOT_FOUND = "ModuleNotFoundError: "


def install(package: str) -> str:
    return f'python -m pip install "transparity[{EXTRAS[package]}]"'


def _is_column(file: str) -> bool:
    ours = PurePath(transparity.__file__).parent
    return PurePath(file).is_relative_to(ours) or any(part.startswith("transparity_") for part in PurePath(file).parts)


def _shown_file(file: str) -> str:
    """Return a short path for messages: relative to the working directory, `folder/file.py` in an installed package, or
    only the file's name."""
    path = PurePath(file)
    is_here = path.is_relative_to(Path.cwd()) and home(file) == ""
    return str(path.relative_to(Path.cwd()) if is_here else PurePath(*path.parts[-2 if home(file) else -1 :]))


@contextlib.contextmanager
def tokens_kept(args: Sequence[Any], named: Mapping[str, Any]) -> Iterator[None]:
    """At the end of the context, raise `ChangedInPlaceError` if an integer array among the arguments has changed."""
    given = {f"argument {index}": value for index, value in enumerate(args, 1)} | dict(named)
    arrays = {
        name: value for name, value in given.items() if isinstance(value, np.ndarray) and value.dtype.kind in "iu"
    }
    before = {name: value.tobytes() for name, value in arrays.items()}
    yield
    for name, value in arrays.items():
        if value.tobytes() != before[name]:
            raise ChangedInPlaceError(f"it changed {name} in place; copy the array before writing to it")


@contextlib.contextmanager
def _shared_state_kept() -> Iterator[None]:
    streams = sys.stdin, sys.stdout, sys.stderr
    with np.errstate(), warnings.catch_warnings():
        try:
            sys.stdout = sys.stderr  # the report must not contain the port's output
            yield
        finally:
            sys.stdin, sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _interrupts() -> Iterator[list[BaseException]]:
    """Yield a list, to which each Ctrl-C of the user adds an exception. If the port itself raises `KeyboardInterrupt`,
    the list stays empty. Python delivers Ctrl-C only to the main thread, and only if a handler is set."""
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
