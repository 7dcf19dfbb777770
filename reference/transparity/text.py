"""Escape and shorten untrusted text, such as names in files, messages of exceptions, reprs and paths.

Every `TransparityError` and every report passes its sentences through `safe`. Therefore, no control character and no
name of ten megabytes reaches a terminal or a file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection
from typing import Any

SENTENCE = 300
"""The maximum length of an error's sentence, in characters."""

VALUE = 60
"""The maximum length of a value within a sentence, in characters."""

MESSAGE = 140
"""The maximum length of another library's error message within a sentence, in characters."""

DEEPEST = 4
"""Nested containers are shown down to this depth."""

BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", frozenset: "{}", dict: "{}"}


def safe(text: Any, limit: int = SENTENCE) -> str:
    """Return `text` as one line of at most `limit` characters, with unprintable characters escaped.

    Control characters, terminal escapes, marks that reverse the direction of text, and lone surrogates become `\\x1b`,
    `\\u202e` and the like. Long text is cut in the middle, because the end of a message says what to do.
    """
    plain = str.__str__(text) if isinstance(text, str) else _of_stranger(str, text)
    line = " ".join(_cut(plain, 4 * limit).split())
    escaped = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
    return _cut(escaped, limit)


def shown(value: Any, limit: int = VALUE) -> str:
    """Return a short, escaped repr of any value. The value may be huge, and its `__repr__` may raise."""
    return safe(_represent(value, limit, DEEPEST), limit)


def describe_error(error: BaseException) -> str:
    """Return an exception as part of a sentence: its type, and its message without the final period."""
    message = safe(error, MESSAGE)
    return f"{safe(type(error).__name__, VALUE)}{': ' + message if message else ''}".rstrip(".")


def reason(error: BaseException) -> str:
    """Return an `OSError`'s system message, or the first sentence of another message, without its period."""
    message = getattr(error, "strerror", None) if isinstance(error, OSError) else None
    first = safe(message or error, MESSAGE).split(". ")[0].rstrip(".")
    return first or safe(type(error).__name__, VALUE)


def listed(names: Collection[Any], most: int = 6) -> str:
    """Return the first `most` names, safe in a sentence, and the number of the others."""
    some = ", ".join(safe(name, VALUE) for name in itertools.islice(names, most))
    return some + (f", … ({len(names) - most} more)" if len(names) > most else "")


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - 1 - end]}…{text[len(text) - end :]}"


def _of_stranger(convert: Callable[[Any], str], value: Any) -> str:
    """Return `convert(value)` as a plain str, or the name of the type if `convert` raises."""
    try:
        return str.__str__(convert(value))
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - whatever a stranger's `__str__` or `__repr__` raises
        return f"<{type(value).__name__}>"


def _represent(value: Any, limit: int, depth: int) -> str:
    """Return a shortened repr, without computing the reprs of items that would be cut off."""
    kind = type(value)
    if kind is str or kind is bytes:
        return repr(value) if len(value) <= limit else f"{value[:limit]!r}…"
    if kind is int and value.bit_length() > 4 * limit:
        return f"a whole number of about {math.ceil(value.bit_length() * math.log10(2))} digits"
    if kind not in BRACKETS:
        return _of_stranger(repr, value)
    if depth == 0 and value:
        return "…"
    items = itertools.islice(value.items() if kind is dict else ((item,) for item in value), limit)
    shortly = [": ".join(_represent(part, limit, depth - 1) for part in parts) for parts in items]
    opens, closes = tuple(BRACKETS[kind])
    last = ["…"] * (len(value) > limit)
    single = "," * (kind is tuple and len(value) == 1)
    return f"{opens}{', '.join(shortly + last)}{single}{closes}" if value or kind is not set else "set()"
