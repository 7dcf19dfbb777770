"""Run a function in a process of its own, with a limit of time and memory."""

import resource
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any


def alone(
    context: Any, seconds: float, function: Callable[..., Iterator[Any]], *given: Any, memory: int | None = None
) -> tuple[Any, str]:
    """Return the last value that a generator function yields in a process of `context`, and why the process was ended.

    The value may be None. The reason is empty unless the process took longer than `seconds`.
    `memory` is the limit in bytes.
    """
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_sent, args=(theirs, memory, function, given))
    ends, found, why = time.monotonic() + seconds, None, ""
    process.start()
    theirs.close()
    try:
        while ours.poll(max(0.0, ends - time.monotonic())):
            found = ours.recv()
        why = f"more than {seconds:g} s"
    except EOFError:
        pass
    process.kill()
    process.join()
    return found, why


def _sent(pipe: Connection, memory: int | None, function: Callable[..., Iterator[Any]], given: tuple[Any, ...]) -> None:
    if memory:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    for each in function(*given):
        pipe.send(each)
