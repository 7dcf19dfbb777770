"""Limit the checker and the port to one thread while they compute small models. This module does not import NumPy,
which reads its number of threads during the import.

The threads of a small matrix product would wait for each other in busy loops. With two threads, checks of small models
take 1.3 times the processor time of one thread. On a busy machine, two threads take four times the processor time of
one thread.
"""

import contextlib
import os
import threading
from collections.abc import Iterator

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
"""Environment variables by which a user chooses a number of threads. The first variable also limits PyTorch."""


def variables() -> dict[str, str]:
    return {} if any(os.environ.get(name) for name in THREADS) else {THREADS[0]: "1"}


@contextlib.contextmanager
def one_thread_from_the_start() -> Iterator[None]:
    """Use one thread in a process that has not yet imported NumPy, and in the processes that it starts."""
    added = variables()
    before = {name: os.environ[name] for name in added if name in os.environ}  # set, but empty
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
        os.environ.update(before)


class _Limit:
    """A limit of one thread, which overlapping contexts share. The last context to end restores the former limit."""

    def __init__(self) -> None:
        self.lock, self.calls, self.limit = threading.Lock(), 0, contextlib.ExitStack()

    def __enter__(self) -> None:
        from threadpoolctl import threadpool_limits

        with self.lock:
            if self.calls == 0:
                self.limit.enter_context(threadpool_limits(limits=1))
            self.calls += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.calls -= 1
            if self.calls == 0:
                self.limit.close()


_LIMIT = _Limit()


def one_thread(is_wanted: bool = True) -> contextlib.AbstractContextManager[None]:
    """Return a context that limits imported libraries, such as NumPy, to one thread, unless the user chose a number.
    The limit does not affect a library that is first imported within the context."""
    return _LIMIT if is_wanted and variables() else contextlib.nullcontext()
