"""An attack: a wrong port, its kind, and the configuration on which it is offered to the checker."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.independent.model import Model
from meta.independent.port import Port, build_with


@dataclass(frozen=True)
class Attack:
    """A wrong port. `says` states the mistake; `fields` replace fields of the configuration `on`."""

    id: str
    kind: str
    says: str
    build: Callable[..., Any]
    on: str
    fields: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.id


ATTACKS: list[Attack] = []


def instead(method: str, function: Callable[..., Any]) -> type:
    """Return a class whose `method` is `function(self, up, …)`, where `up` is the right one."""

    def overriding(self: Any, *given: Any, **named: Any) -> Any:
        return function(self, functools.partial(getattr(super(made, self), method)), *given, **named)

    made = type(function.__name__, (), {method: overriding, "__doc__": function.__doc__})
    return made


def attack(
    kind: str, on: str = "notes-lm", *, dtype: str = "float32", at: str = "", offers: bool = False, **fields: Any
) -> Callable[[Any], Any]:
    """Register a class, or a function that overrides the method `at`, as an attack on the right port.

    The port has its capabilities if the attack is of that kind, or `offers` them.
    """

    def register(part: Any) -> Any:
        id = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", "-", part.__name__).lower()
        mixin = instead(at, part) if at else part
        base = Port if offers or kind == "capabilities" or getattr(part, "offers", False) else Model
        build = build_with(mixin, base=base)
        ATTACKS.append(Attack(id, kind, (part.__doc__ or "").strip(), build, on, tuple(fields.items()), dtype))
        return part

    return register
