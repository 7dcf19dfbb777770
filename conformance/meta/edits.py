"""Faults as rows of TOML: text of a file that is there once, and what replaces it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any


class PoolError(ValueError):
    """A table that describes no bug, or an edit whose text is not there."""


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table. Keys outside all tables are defaults for every row."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    shared = {name: value for name, value in tables.items() if not isinstance(value, list | dict)}
    return [shared | row for row in tables[table]]


def edited(text: str, old: str, new: str, nth: int | None = None, where: str = "the text") -> str:
    """Return `text` with `old`, or its `nth` place, replaced; raises `PoolError` unless that is one place."""
    count = text.count(old)
    if count != 1 and nth is None:
        raise PoolError(f"{where} has {count} places with {old!r}; expected one, or its number as nth.")
    if nth is not None and not 1 <= nth <= count:
        raise PoolError(f"{where} has {count} places with {old!r}; there is no nth = {nth}.")
    begin = -1
    for _ in range(nth or 1):
        begin = text.index(old, begin + 1)
    return text[:begin] + new + text[begin + len(old) :]
