"""What a user's mistake is answered with: one sentence, never a framework's traceback."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np


class TransparityError(ValueError):
    """Says what was given, where, what was expected, and what to do."""


class ConfigError(TransparityError):
    """A field of a configuration is impossible."""


class ParameterError(TransparityError):
    """A parameter is missing, extra, misshapen or not a finite float."""


class InputError(TransparityError):
    """Tokens do not fit the configuration."""


class BackendError(TransparityError):
    """A backend was asked for something that it does not offer."""


def shown(value: Any) -> str:
    """`value` as an error quotes it: on one line, and not without end."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"


def is_number(value: Any) -> bool:
    """Whether `value` is a number of Python's, which True and False are not meant to be."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_whole(value: Any, least: int) -> bool:
    """Whether `value` counts something, and at least `least` of it."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= least
    except TypeError:
        return False


def as_array(name: str, value: Any, error: type[TransparityError]) -> np.ndarray:
    """`value` as an array; raises `error` if it is none, such as a list of rows of different lengths."""
    try:
        return np.asarray(value)
    except Exception as reason:  # noqa: BLE001 - whatever the `__array__` of a stranger raises
        says = " ".join(str(reason).split()).split(". ")[0].rstrip(".")
        raise error(f"{name} is {shown(value)}; expected an array ({says}).") from None
