"""Errors for users: one sentence each, never a framework's traceback."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

from transparity.text import reason, safe
from transparity.text import shown as shown  # every error quotes values with it

if TYPE_CHECKING:
    import numpy as np


class TransparityError(ValueError):
    """One sentence, safe to print: the given value, its place, the expected value, and the remedy."""

    def __init__(self, sentence: str) -> None:
        super().__init__(safe(sentence))


class ConfigError(TransparityError):
    """A field of a configuration is impossible."""


class ParameterError(TransparityError):
    """A parameter is missing, unknown, of the wrong shape, or not a finite float."""


class InputError(TransparityError):
    """Tokens do not fit the configuration."""


class UsageError(TransparityError):
    """Arguments of a command contradict each other or are misplaced."""


class BackendError(TransparityError):
    """A backend does not offer the requested precision, device or mode."""


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
    """Return whether `value` is an int or a float that a float can hold, and not NaN or infinite."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:
        return False


def as_array(name: str, value: Any, error: type[TransparityError]) -> np.ndarray:
    """Return `value` as an array; raises `error` if NumPy cannot, as for rows of different lengths."""
    import numpy as np

    try:
        return np.asarray(value)
    except Exception as problem:  # noqa: BLE001 - `__array__` of any object may raise anything
        raise error(f"{name} is {shown(value)}; expected an array ({reason(problem)}).") from None
