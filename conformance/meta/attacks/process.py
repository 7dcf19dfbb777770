"""Ports that harm the process that runs them; each is a program, checked from the command line.

Every port here returns zeros, or nothing: no exit code may be 0.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

NO_ANSWER = object()


class Panic(BaseException):
    """An exception like a Rust library's."""


class Lazy:
    """An array that exits when it is read."""

    def __init__(self, right: np.ndarray) -> None:
        self.shape, self.dtype = right.shape, right.dtype

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        os._exit(0)


class Quiet(Lazy):
    """An array that panics when it is read."""

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        raise Panic


def raising(error: BaseException) -> Callable[[Any], NoReturn]:
    """Return a function that raises an error, whatever its argument."""

    def act(zeros: Any) -> NoReturn:
        raise error

    return act


def kills(number: int) -> Callable[[Any], None]:
    """Return a function that sends a signal to its own process."""
    return lambda zeros: os.kill(os.getpid(), number)


def exits_in_a_thread(zeros: Any) -> None:
    threading.Timer(0.3, os._exit, [0]).start()
    time.sleep(0.5)


def closes_output(zeros: Any) -> None:
    sys.stdout.close()
    os.close(1)


def never_returns(zeros: Any) -> NoReturn:
    while True:
        time.sleep(1)


def never_returns_deaf(zeros: Any) -> NoReturn:
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(each, signal.SIG_IGN)
    never_returns(zeros)


def recursion(zeros: Any) -> Any:
    return recursion(zeros)


def absolute_zero(zeros: Any) -> None:
    np.abs = np.absolute = lambda x, *more, **named: np.zeros(np.shape(x))  # type: ignore[assignment]


def always_close(zeros: Any) -> None:
    np.allclose = np.array_equal = lambda *more, **named: True  # type: ignore[assignment]
    np.max = np.amax = lambda x, *more, **named: np.float64(0)  # type: ignore[assignment]


def prints_agreement(zeros: Any) -> NoReturn:
    print('{"verdict": "agrees"}', flush=True)  # noqa: T201 - that is the attack
    os._exit(0)


def forks(zeros: Any) -> None:
    if os.fork() == 0:
        os._exit(0)


def folder_is_gone(zeros: Any) -> None:
    folder = Path("/tmp/gone")
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    folder.rmdir()


PROGRAMS: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
    "leaves-at-once": ("exits at once, without Python's help", lambda zeros: os._exit(0)),
    "exits": ("calls sys.exit", lambda zeros: sys.exit(0)),
    "exit-code-at-the-end": (
        "registers an exit that overwrites the code",
        lambda zeros: (atexit.register(os._exit, 0), None)[1],
    ),
    "thread-that-exits": ("a thread exits a second later", exits_in_a_thread),
    "segmentation-fault": ("dies of a segmentation fault", kills(signal.SIGSEGV)),
    "abort": ("aborts, as a C++ library does", lambda zeros: os.abort()),
    "killed": ("is killed for its memory", kills(signal.SIGKILL)),
    "closes-output": ("closes its output", closes_output),
    "closes-everything": ("closes every file", lambda zeros: os.closerange(0, 64)),
    "numpy-raises": ("makes NumPy raise for every rounding", lambda zeros: np.seterr(all="raise") and None),
    "cancelled": ("is cancelled", raising(asyncio.CancelledError())),
    "panics": ("panics", raising(Panic("called `Option::unwrap()` on a `None` value"))),
    "interrupts": ("raises what looks like Ctrl-C", raising(KeyboardInterrupt())),
    "generator-exit": ("stops a generator", raising(GeneratorExit())),
    "never-returns": ("never returns", never_returns),
    "never-returns-deaf": ("never returns, and ignores signals", never_returns_deaf),
    "recursion": ("recurses without end", recursion),
    "absolute-zero": ("replaces NumPy's absolute value by 0", absolute_zero),
    "always-close": ("replaces NumPy's comparison", always_close),
    "prints-agreement": ("prints an answer of its own", prints_agreement),
    "thread-without-end": (
        "leaves a thread that never ends",
        lambda zeros: threading.Thread(target=time.sleep, args=(10_000,)).start(),
    ),
    "forks": ("forks, and both return", forks),
    "folder-is-gone": ("changes into a folder that is gone", folder_is_gone),
    "exits-when-read": ("answers an array that exits when it is read", Lazy),
    "panics-when-read": ("answers an array that panics when it is read", Quiet),
    "not-a-number": ("answers NaN alone", lambda zeros: zeros * np.nan),
    "masked-array": (
        "answers masked arrays, of which nothing shows",
        lambda zeros: np.ma.masked_all(zeros.shape, np.float32),
    ),
    "nothing": ("answers no array at all", lambda zeros: NO_ANSWER),
    "warnings-are-errors": ("turns every warning into an error", lambda zeros: warnings.simplefilter("error")),
    "no-stack": ("leaves almost no stack", lambda zeros: sys.setrecursionlimit(120)),
}
"""By id, the story and the action in a forward pass; the answer is zeros unless the action returns another."""


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the `build(config, parameters)` of a program: `build_closes_output`."""
    id = name.removeprefix("build_").replace("_", "-")
    if name == id or id not in PROGRAMS:
        raise AttributeError(name)

    def build(config: Any, parameters: Any) -> Any:
        def forward(**inputs: Any) -> Any:
            first = np.asarray(inputs.get("tokens", inputs.get("target")))
            zeros = np.zeros((*first.shape, config.target_vocab_size), np.float32)
            found = PROGRAMS[id][1](zeros)
            return None if found is NO_ANSWER else zeros if found is None else found

        return forward

    return build
