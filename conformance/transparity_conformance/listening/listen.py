"""Call a function, and record the operations that NumPy, PyTorch or JAX runs during the call."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from transparity.errors import TransparityError, shown
from transparity_conformance.listening import jax, numpy, pytorch
from transparity_conformance.listening.operation import Operation, Source, run
from transparity_conformance.listening.record import Record

Listener = Callable[[Record, Callable[[], Any]], AbstractContextManager[None]]

LISTENERS: dict[str, tuple[str, Listener]] = {
    "numpy": ("numpy", numpy.listening),
    "pytorch": ("torch", lambda record, _: pytorch.listening(record)),
    "jax": ("jax", lambda record, _: jax.listening(record)),
}
"""The module that a port imports, and the context that records a call. NumPy comes first, because its context calls the
function once before the recording."""


def listen(
    call: Callable[[], Any],
    framework: str | None = None,
    *,
    largest: float = math.inf,
    whole_numbers: bool = False,
    rehearsal: Callable[[], Any] | None = None,
) -> tuple[Any, list[Operation]]:
    """Call a function, and record its operations.

    For NumPy, the function is called twice: the first call finds the port's functions, and the second call is recorded.
    Exceptions of the function propagate. The docstrings of the modules `numpy`, `pytorch` and `jax` list the operations
    that are not recorded.

    Args:
        call: the function to call, such as `lambda: forward(tokens=ids)`.
        framework: `pytorch`, `jax` or `numpy`; None records every framework that is imported.
        largest: the largest number of bytes of all values together; values beyond this limit are left out.
        whole_numbers: whether to record integers and bools.
        rehearsal: a function to use in the first call, if `call` may be called only once.

    Returns: the result of the call, and the operations in order. Raise `TransparityError` for an unknown framework.
    """
    if framework is not None and framework not in LISTENERS:
        raise TransparityError(f"The framework is {shown(framework)}; expected one of {', '.join(LISTENERS)}, or None.")
    record = Record(largest, whole_numbers=whole_numbers)
    with contextlib.ExitStack() as stack:
        for name, (module, listening) in LISTENERS.items():
            if framework in (None, name) and module in sys.modules:
                stack.enter_context(listening(record, rehearsal or call))
        result = run(call)
    return result, _inside(record.operations)


def listen_once(
    function: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    *,
    largest: float,
    whole_numbers: bool,
) -> tuple[Any, list[Operation]]:
    """Record a call that may modify its arguments, such as a cache."""
    args_copy, named_copy = copy.deepcopy((args, dict(named)))
    return listen(
        lambda: function(*args, **named),
        largest=largest,
        whole_numbers=whole_numbers,
        rehearsal=lambda: function(*args_copy, **named_copy),
    )


def _inside(operations: list[Operation]) -> list[Operation]:
    """Add an installed package's lines to the stacks if a single line of the port's file runs most operations."""
    stack, count = next(iter(collections.Counter(each.stack for each in operations).most_common(1)), ((), 0))
    inside: dict[int, tuple[Source, ...]] = {
        index: getattr(each.stack, "inside", ()) for index, each in enumerate(operations) if each.stack == stack
    }
    if 2 * count <= len(operations) or len({lines[:1] for lines in inside.values()}) < 2:
        return operations
    return [
        dataclasses.replace(each, stack=(*inside.get(index, ()), *each.stack)) for index, each in enumerate(operations)
    ]
