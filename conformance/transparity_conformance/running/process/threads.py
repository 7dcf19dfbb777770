"""The number of threads with which the checker and the port compute small models; imports no NumPy."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Environment variables that keep NumPy and PyTorch from dividing small products among threads.

The threads would wait for each other in busy loops. With two threads, checks of small models take 1.3 times the
processor time, and four times on a busy machine.
"""


def use_one_thread() -> None:
    """Set the variables of `ONE_THREAD` that the user has not set; NumPy reads them when it is imported."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread within the context, in a process that has imported NumPy, unless the user chose a number."""
    if not os.environ.keys().isdisjoint(ONE_THREAD):
        yield
        return
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield
