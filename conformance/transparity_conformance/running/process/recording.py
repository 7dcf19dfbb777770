"""Call a port once and record its operations; imports little, so that a port's process starts fast."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.process.wire import largest_answer


def listen_once(
    function: Callable[..., Any],
    args: Sequence[Any],
    named: Mapping[str, Any],
    framework: str | None = None,
    *,
    whole_numbers: bool,
) -> tuple[Any, list[Operation]]:
    """Call a function, and return its result and operations.

    To record NumPy, the function is called twice. The first call gets copies of the arguments, because a call may
    modify a cache.
    """
    args_copy, named_copy = copy.deepcopy((args, dict(named)))
    return listen(
        lambda: function(*args, **named),
        framework,
        largest=largest_answer() // 2,
        whole_numbers=whole_numbers,
        rehearsal=lambda: function(*args_copy, **named_copy),
    )
