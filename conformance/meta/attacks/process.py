"""Harm that a port does to the process that runs it; each is a program of its own, checked from the command line.

Every port here answers zeros, or nothing: no exit code may be 0.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

Build = Callable[..., Any]
PROGRAMS: dict[str, tuple[str, Build]] = {}
"""By id: the story, and the `build`."""


def zeros(config: Any, **inputs: Any) -> np.ndarray:
    first = inputs.get("tokens", inputs.get("target"))
    return np.zeros((*np.asarray(first).shape, config.target_vocab_size), np.float32)


def program(says: str) -> Callable[[Callable[..., Any]], Build]:
    """Register a function of (config, inputs) as the forward pass of a port."""

    def register(forward: Callable[..., Any]) -> Build:
        def build(config: Any, parameters: Any) -> Any:
            return lambda **inputs: forward(config, **inputs)

        PROGRAMS[forward.__name__.replace("_", "-")] = (says, build)
        globals()[f"build_{forward.__name__}"] = build
        return build

    return register


@program("exits at once, without Python's help")
def leaves_at_once(config: Any, **inputs: Any) -> NoReturn:
    os._exit(0)


@program("calls sys.exit")
def exits(config: Any, **inputs: Any) -> NoReturn:
    sys.exit(0)


@program("registers an exit that overwrites the code")
def exit_code_at_the_end(config: Any, **inputs: Any) -> Any:
    atexit.register(os._exit, 0)
    return zeros(config, **inputs)


@program("a thread exits a second later")
def thread_that_exits(config: Any, **inputs: Any) -> Any:
    threading.Timer(0.3, os._exit, [0]).start()
    time.sleep(0.5)
    return zeros(config, **inputs)


@program("dies of a segmentation fault")
def segmentation_fault(config: Any, **inputs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)
    return zeros(config, **inputs)


@program("aborts, as a C++ library does")
def abort(config: Any, **inputs: Any) -> Any:
    os.abort()


@program("is killed for its memory")
def killed(config: Any, **inputs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
    return zeros(config, **inputs)


@program("closes its output")
def closes_output(config: Any, **inputs: Any) -> Any:
    sys.stdout.close()
    os.close(1)
    return zeros(config, **inputs)


@program("closes every file")
def closes_everything(config: Any, **inputs: Any) -> Any:
    os.closerange(0, 64)
    return zeros(config, **inputs)


@program("makes NumPy raise for every rounding")
def numpy_raises(config: Any, **inputs: Any) -> Any:
    np.seterr(all="raise")
    return zeros(config, **inputs)


@program("is cancelled")
def cancelled(config: Any, **inputs: Any) -> NoReturn:
    raise asyncio.CancelledError


class Panic(BaseException):
    """As a Rust library raises it."""


@program("panics")
def panics(config: Any, **inputs: Any) -> NoReturn:
    raise Panic("called `Option::unwrap()` on a `None` value")


@program("raises what looks like Ctrl-C")
def interrupts(config: Any, **inputs: Any) -> NoReturn:
    raise KeyboardInterrupt


@program("stops a generator")
def generator_exit(config: Any, **inputs: Any) -> NoReturn:
    raise GeneratorExit


@program("never returns")
def never_returns(config: Any, **inputs: Any) -> NoReturn:
    while True:
        time.sleep(1)


@program("never returns, and ignores signals")
def never_returns_deaf(config: Any, **inputs: Any) -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(each, signal.SIG_IGN)
    while True:
        time.sleep(1)


@program("recurses without end")
def recursion(config: Any, **inputs: Any) -> Any:
    return recursion(config, **inputs)


@program("replaces NumPy's absolute value by 0")
def absolute_zero(config: Any, **inputs: Any) -> Any:
    np.abs = np.absolute = lambda x, *more, **named: np.zeros(np.shape(x))  # type: ignore[assignment]
    return zeros(config, **inputs)


@program("replaces NumPy's comparison")
def always_close(config: Any, **inputs: Any) -> Any:
    np.allclose = lambda *more, **named: True
    np.array_equal = lambda *more, **named: True
    np.max = np.amax = lambda x, *more, **named: np.float64(0)  # type: ignore[assignment]
    return zeros(config, **inputs)


@program("prints an answer of its own")
def prints_agreement(config: Any, **inputs: Any) -> NoReturn:
    print('{"verdict": "agrees"}', flush=True)  # noqa: T201 - that is the attack
    os._exit(0)


@program("leaves a thread that never ends")
def thread_without_end(config: Any, **inputs: Any) -> Any:
    threading.Thread(target=lambda: time.sleep(10_000)).start()
    return zeros(config, **inputs)


@program("forks, and both return")
def forks(config: Any, **inputs: Any) -> Any:
    if os.fork() == 0:
        os._exit(0)
    return zeros(config, **inputs)


@program("changes into a folder that is gone")
def folder_is_gone(config: Any, **inputs: Any) -> Any:
    os.makedirs("/tmp/gone", exist_ok=True)  # noqa: PTH103
    os.chdir("/tmp/gone")
    os.rmdir("/tmp/gone")  # noqa: PTH106
    return zeros(config, **inputs)


class Lazy:
    """An array that exits when it is read."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape, self.dtype = shape, np.dtype("float32")

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        os._exit(0)


@program("answers an array that exits when it is read")
def exits_when_read(config: Any, **inputs: Any) -> Any:
    return Lazy(zeros(config, **inputs).shape)


class Quiet(Lazy):
    """An array that panics when it is read."""

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        raise Panic


@program("answers an array that panics when it is read")
def panics_when_read(config: Any, **inputs: Any) -> Any:
    return Quiet(zeros(config, **inputs).shape)


@program("answers NaN alone")
def not_a_number(config: Any, **inputs: Any) -> Any:
    return zeros(config, **inputs) * np.nan


@program("answers masked arrays, of which nothing shows")
def masked_array(config: Any, **inputs: Any) -> Any:
    return np.ma.masked_all(zeros(config, **inputs).shape, np.float32)


@program("answers no array at all")
def nothing(config: Any, **inputs: Any) -> Any:
    return None


@program("turns every warning into an error")
def warnings_are_errors(config: Any, **inputs: Any) -> Any:
    import warnings

    warnings.simplefilter("error")
    return zeros(config, **inputs)


@program("leaves almost no stack")
def no_stack(config: Any, **inputs: Any) -> Any:
    sys.setrecursionlimit(120)
    return zeros(config, **inputs)
