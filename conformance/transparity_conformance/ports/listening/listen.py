"""Listening to a call: its result, and every operation on the way."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from transparity.errors import TransparityError, shown
from transparity_conformance.ports.listening import jax, numpy, pytorch, source
from transparity_conformance.ports.listening.operation import Operation
from transparity_conformance.ports.listening.record import Record

Listener = Callable[[Record, Callable[[], Any]], AbstractContextManager[None]]

LISTENERS: dict[str, tuple[str, Listener]] = {
    "numpy": ("numpy", numpy.listening),
    "pytorch": ("torch", lambda record, _: pytorch.listening(record)),
    "jax": ("jax", lambda record, _: jax.listening(record)),
}
"""By framework: the module without which it cannot have been used, and its listener; NumPy's calls the function first,
before others listen."""


def listen(
    call: Callable[[], Any], framework: str | None = None, *, largest: float = math.inf
) -> tuple[Any, list[Operation]]:
    """Call a function, and record its operations; for NumPy it is called once more before, to learn what runs.

    What the function raises is raised. What cannot be recorded is left out.

    Args:
        call: the function, such as `lambda: forward(tokens=ids)`.
        framework: `pytorch`, `jax` or `numpy`; None for all that are imported: none is imported for this.
        largest: bytes of values in all; an operation beyond is left out.

    Returns: the result of the call, and the operations in the order in which they ran. Raises `TransparityError` for
    an unknown framework.
    """
    if framework is not None and framework not in LISTENERS:
        raise TransparityError(f"The framework is {shown(framework)}; expected one of {', '.join(LISTENERS)}, or None.")
    record = Record(largest)
    with _listening(record, framework, call):
        result = source.run(call)
    return result, record.operations


@contextlib.contextmanager
def _listening(record: Record, framework: str | None, call: Callable[[], Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, (module, listening) in LISTENERS.items():
            if framework in (None, name) and module in sys.modules:
                stack.enter_context(listening(record, call))
        yield
