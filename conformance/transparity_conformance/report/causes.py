"""Explain causes, with the texts of causes.toml."""

from __future__ import annotations

import difflib
import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from transparity.errors import TransparityError
from transparity.text import shown

SITE = "https://transparity.github.io/transparity/"


@dataclass(frozen=True)
class Meaning:
    title: str
    right: str
    look: str
    hidden: str = ""
    """The inputs or models on which the fault has no effect."""
    seen: tuple[str, ...] = ()
    """Public issues about this fault, as owner/name#number."""

    variants: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    """For each variant, a sentence, or a table with the sentence and with the change that puts the variant into the
    reference."""
    factors: Mapping[str, str] = field(default_factory=dict)
    """Wrong factors that ports use, the most likely first; the factors are expressions of the configuration `c`."""

    @functools.cached_property
    def says(self) -> dict[str, str]:
        return {name: row if isinstance(row, str) else row["says"] for name, row in self.variants.items()}

    def links(self) -> list[str]:
        return [f"https://github.com/{thread.replace('#', '/issues/')}" for thread in self.seen]


@functools.cache
def meanings() -> Mapping[str, Meaning]:
    text = files(__package__).joinpath("causes.toml").read_text(encoding="utf-8")
    entries = sorted(tomllib.loads(text).items())
    return {name: Meaning(**entry | {"seen": tuple(entry.get("seen", ()))}) for name, entry in entries}


def page_of(name: str) -> str:
    return f"{SITE}causes/{name}/"


def meaning(name: str) -> Meaning:
    known = meanings()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "`transparity explain` lists them all."
        raise TransparityError(f"There is no cause {shown(name)}; {hint}")
    return known[name]
