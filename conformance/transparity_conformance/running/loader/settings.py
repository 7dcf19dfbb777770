"""What a forward pass takes besides token ids: that it is no training, and the targets with which all logits come."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from transparity_conformance.capabilities.stranger import PortCallError, call_stranger

SETTINGS: dict[str, Any] = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "inference": True,
    "start_pos": 0,
}
"""Arguments without a default that say that nothing is trained, or that no tokens came before."""

TARGETS = "targets"
"""The argument of nanoGPT and its like, which without it return the logits of the last position alone."""


def settings_of(takes: inspect.Signature | None) -> dict[str, Any]:
    """The arguments of a forward pass that have no default and are no tokens, with their values."""
    parameters = {} if takes is None else dict(takes.parameters)
    needed = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
    return {name: SETTINGS[name] for name in needed if name in SETTINGS}


def completed(
    model: Callable[..., Any],
    takes: inspect.Signature | None,
    array: Callable[[np.ndarray], Any],
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Callable[..., Any]:
    """The forward pass with its settings and, if it returns the last position alone without targets, with these.

    Args:
        model: the forward pass, of which the first argument is token ids.
        takes: its signature.
        array: turns token ids into an array of its framework.
        without_gradients: the context of a call.
    """
    settings = settings_of(takes)

    def plain(*args: Any, **named: Any) -> Any:
        return model(*args, **named, **settings)

    def with_targets(*args: Any, **named: Any) -> Any:
        return plain(*args, **named, **{TARGETS: (*args, *named.values())[0]})

    if takes is None or TARGETS not in takes.parameters:
        return plain
    try:
        with without_gradients():
            answer = call_stranger(plain, array(np.zeros((1, 2), np.int64)))
    except PortCallError:  # the first call of the checker will raise it, too
        return plain
    logits = answer[0] if isinstance(answer, tuple | list) else getattr(answer, "logits", answer)
    return with_targets if tuple(getattr(logits, "shape", ()))[:2] == (1, 1) else plain
