"""The faults of `plants.toml`: a text of a column's file, what replaces it, and the claims that have to fail."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meta.planting.planted import file_path
from meta.pool.bug import edited, rows

WORDS = ("pytorch", "flax")
"""Columns for which a row may have words of its own."""


@dataclass(frozen=True)
class Plant:
    """One text of one column, made wrong."""

    mistake: str
    column: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.column}-{self.mistake}"

    def source(self) -> str:
        """Return the file with the fault; raises `PoolError` unless its text is there once."""
        return edited(file_path(self.column, self.file).read_text(), self.old, self.new, where=f"{self}: {self.file}")


def _plants() -> list[Plant]:
    found = []
    for row in rows(Path(__file__).with_name("plants.toml"), "plant"):
        texts = {name: row[name] for name in WORDS if name in row} or dict.fromkeys(row["columns"], row)
        for name, text in texts.items():
            claims = tuple(row["caught_by"])
            found.append(Plant(row["id"], f"transparity_{name}", row["file"], text["old"], text["new"], claims))
    return found


PLANTS = _plants()
