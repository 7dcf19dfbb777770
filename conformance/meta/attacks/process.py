"""Ports that harm their own process; each is checked from the command line. No port returns right logits, so an exit
code of 0 is always wrong."""

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
    """An exception like a panic in a Rust library, which does not derive from `Exception`."""


class Lazy:
    """An array-like object whose conversion to NumPy exits the process."""

    def __init__(self, right: np.ndarray) -> None:
        self.shape, self.dtype = right.shape, right.dtype

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        os._exit(0)


class Quiet(Lazy):
    """An array-like object whose conversion to NumPy panics."""

    def __array__(self, *more: Any, **named: Any) -> np.ndarray:
        raise Panic


def raising(error: BaseException) -> Callable[[Any], NoReturn]:
    def act(zeros: Any) -> NoReturn:
        raise error

    return act


def kills(number: int) -> Callable[[Any], None]:
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
    "leaves-at-once": ("calls `os._exit`", lambda zeros: os._exit(0)),
    "exits": ("calls sys.exit", lambda zeros: sys.exit(0)),
    "exit-code-at-the-end": ("overwrites the exit code at exit", lambda zeros: (atexit.register(os._exit, 0), None)[1]),
    "thread-that-exits": ("exits in a thread after 0.3 s", exits_in_a_thread),
    "segmentation-fault": ("crashes with a segmentation fault", kills(signal.SIGSEGV)),
    "abort": ("aborts like a C++ library", lambda zeros: os.abort()),
    "killed": ("is killed as if it ran out of memory", kills(signal.SIGKILL)),
    "closes-output": ("closes its output", closes_output),
    "closes-everything": ("closes every file", lambda zeros: os.closerange(0, 64)),
    "numpy-raises": ("makes NumPy raise for every floating-point error", lambda zeros: np.seterr(all="raise") and None),
    "cancelled": ("raises `CancelledError`", raising(asyncio.CancelledError())),
    "panics": (
        "raises a panic that is not an `Exception`",
        raising(Panic("called `Option::unwrap()` on a `None` value")),
    ),
    "interrupts": ("raises `KeyboardInterrupt`", raising(KeyboardInterrupt())),
    "generator-exit": ("raises `GeneratorExit`", raising(GeneratorExit())),
    "never-returns": ("never returns", never_returns),
    "never-returns-deaf": ("never returns, and ignores signals", never_returns_deaf),
    "recursion": ("recurses infinitely", recursion),
    "absolute-zero": ("replaces NumPy's `abs` by 0", absolute_zero),
    "always-close": ("replaces NumPy's comparison", always_close),
    "prints-agreement": ("prints a forged answer", prints_agreement),
    "thread-without-end": (
        "leaves a thread that never ends",
        lambda zeros: threading.Thread(target=time.sleep, args=(10_000,)).start(),
    ),
    "forks": ("forks a process that exits with code 0", forks),
    "folder-is-gone": ("deletes its working directory", folder_is_gone),
    "exits-when-read": ("returns an array that exits when it is read", Lazy),
    "panics-when-read": ("returns an array that panics when it is read", Quiet),
    "not-a-number": ("returns only NaN", lambda zeros: zeros * np.nan),
    "masked-array": (
        "returns masked arrays in which every element is masked",
        lambda zeros: np.ma.masked_all(zeros.shape, np.float32),
    ),
    "nothing": ("returns None", lambda zeros: NO_ANSWER),
    "warnings-are-errors": ("turns every warning into an error", lambda zeros: warnings.simplefilter("error")),
    "no-stack": ("leaves almost no room on the stack", lambda zeros: sys.setrecursionlimit(120)),
}
"""The harm that a port does, and its forward pass, a function of zeros shaped like logits; None means the zeros."""


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the `build(config, parameters)` of a program, such as `build_closes_output`."""
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
