"""The outcome of one input: a verdict, an error with a readable message, or a violation such as a crash."""

import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hypothesis.errors import HypothesisException, StopTest

from transparity.errors import TransparityError
from transparity.text import SENTENCE

SECONDS, MEGABYTES = 10.0, 1000

ACCEPTED = "accepted"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one input. `what` is `accepted`, a verdict, or the type of the error. `violation` is the promise
    that was broken, or an empty string."""

    what: str
    seconds: float = 0.0
    megabytes: float = 0.0
    violation: str = ""


class TooLong(KeyboardInterrupt):
    """The time for an input is over. Entry points do not catch this exception, because it is a KeyboardInterrupt."""


class WrongAnswerError(Exception):
    """The checker's answer is wrong; for example, it agrees with a wrong port."""


def outcome(run: Callable[[], str]) -> Outcome:
    before, began = peak(), time.perf_counter()
    what, violation = "", ""
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            what = run()
    except (StopTest, HypothesisException):
        raise  # Hypothesis stopped drawing the input
    except TransparityError as error:
        what, violation = type(error).__name__, unreadable(str(error))
    except TooLong:
        what, violation = "no answer", f"took longer than {SECONDS:g} s"
    except WrongAnswerError as error:
        what, violation = "wrong", str(error)
    except BaseException as error:  # noqa: BLE001 - that nothing else is raised is what is tested
        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = type(error).__name__
        violation = f"raised {what}: {str(error)[:200]!a} ({frame.filename}, line {frame.lineno})"
    seconds, megabytes = time.perf_counter() - began, peak() - before
    if not violation and megabytes > MEGABYTES:
        violation = f"the memory grew by {megabytes:.0f} MB"
    return Outcome(what, seconds, megabytes, violation)


def unreadable(sentence: str) -> str:
    """Return why a message is not one readable sentence; empty if it is."""
    if not sentence.isprintable():
        return f"not printable: {sentence!a}"
    if not sentence.endswith("."):
        return f"not a sentence: {sentence}"
    if len(sentence) >= SENTENCE:  # a sentence of the maximum length was cut
        return f"too long: {sentence}"
    return ""


def peak() -> float:
    scale = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


@contextmanager
def _limited() -> Iterator[None]:
    """Raise `TooLong` when the time of an input is over; this works only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
