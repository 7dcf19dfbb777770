"""Errors for users: each has a message of one sentence, in place of a framework's traceback."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from transparity.text import reason, safe
from transparity.text import shown as shown  # for the modules that raise these errors

if TYPE_CHECKING:
    import numpy as np


class TransparityError(ValueError):
    """An error whose message is one printable sentence: what was given, where, what was expected, and what to do."""

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


class ConfigError(TransparityError):
    """An error for a configuration with an invalid field."""


class ParameterError(TransparityError):
    """An error for a parameter that is missing, unknown, of the wrong shape, or not a finite float."""


class InputError(TransparityError):
    """An error for inputs that do not fit the configuration."""


class UsageError(TransparityError):
    """An error for arguments of a command that are wrong or contradict each other."""


class BackendError(TransparityError):
    """An error for a precision, device or mode that a backend lacks."""


def is_number(value: Any) -> bool:
    """Return whether `value` is an int or a float, but not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any, least: int) -> bool:
    """Return whether `value` is a whole number of at least `least`, but not a bool."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except Exception:  # noqa: BLE001 - `__index__` of any object may raise anything
        return False


def is_finite(value: Any) -> bool:
    """Return whether `value` is a finite number that fits into a float."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:
        return False


def as_array(name: str, value: Any, error: type[TransparityError]) -> np.ndarray:
    """Return `value` as an array; raise `error` if NumPy cannot convert `value`, for example lists of different
    lengths."""
    import numpy as np

    try:
        return np.asarray(value)
    except Exception as problem:  # noqa: BLE001 - `__array__` of any object may raise anything
        raise error(f"{name} is {shown(value)}; expected an array ({reason(problem)}).") from None
