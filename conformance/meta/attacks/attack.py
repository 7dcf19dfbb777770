"""An attack: a wrong port, its kind, and the configuration on which it is offered to the checker."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.independent.model import Model
from meta.independent.port import Port, build_with


@dataclass(frozen=True)
class Attack:
    """One wrong port."""

    id: str
    kind: str
    says: str
    """The mistake, in a sentence."""
    build: Callable[..., Any]
    on: str
    """A preset, or a family's configuration."""
    fields: tuple[tuple[str, Any], ...] = ()
    """Fields of the configuration that differ from those of `on`."""
    dtype: str = "float32"
    """The precision that is declared."""

    def __str__(self) -> str:
        return self.id


ATTACKS: list[Attack] = []


def attack(kind: str, on: str = "notes-lm", *, dtype: str = "float32", **fields: Any) -> Callable[[type], type]:
    """Register a class as an attack: in front of the port with capabilities, or of the forward pass alone."""

    def register(part: type) -> type:
        base = Port if kind == "capabilities" or getattr(part, "offers", False) else Model
        id = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", part.__name__).lower()
        says = (part.__doc__ or "").strip()
        made = build_with(part, base=base)
        ATTACKS.append(Attack(id, kind, says, made, on, tuple(fields.items()), dtype))
        return part

    return register
