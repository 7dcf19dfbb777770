"""The class `Attack`, and the base class `Attacks` that registers attacks."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.independent.model import Model
from meta.independent.port import Port, build_with


@dataclass(frozen=True)
class Attack:
    """A wrong port.

    `says` states the mistake. `fields` replace fields of the configuration `case`.
    """

    id: str
    kind: str
    says: str
    build: Callable[..., Any]
    case: str
    fields: tuple[tuple[str, Any], ...] = ()
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.id


ATTACKS: list[Attack] = []


class Attacks:
    """The base class for attacks of one kind, which the subclass is named after.

    A nested class becomes a base class of the correct port. A function replaces the method that its second parameter is
    named after (`call` for `__call__`); this parameter receives the correct method. With `offered`, the ports also
    offer
    their capabilities.
    """

    offered = False

    def __init_subclass__(cls) -> None:
        for name, part in list(vars(cls).items()):
            if inspect.isfunction(part) or inspect.isclass(part):
                _register(cls, name, part)


def on(case: str = "notes-lm", *, dtype: str = "float32", offers: bool = False, **fields: Any) -> Callable[[Any], Any]:
    """Set the configuration and precision of an attack, and whether the port offers its capabilities.

    `fields` replace fields of the configuration `case`.
    """

    def decorated(part: Any) -> Any:
        part.settings = {"case": case, "dtype": dtype, "fields": tuple(fields.items())}
        part.offers = offers or getattr(part, "offers", False)
        return part

    return decorated


def _register(attacks: type[Attacks], name: str, part: Any) -> None:
    id = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|_", "-", name).lower()
    base = Port if attacks.offered or getattr(part, "offers", False) else Model
    mixin = part if inspect.isclass(part) else _instead(part)
    settings = getattr(part, "settings", {"case": "notes-lm"})
    kind, says = attacks.__name__.lower(), (part.__doc__ or "").strip()
    ATTACKS.append(Attack(id, kind, says, build_with(mixin, base=base), **settings))


def _instead(function: Callable[..., Any]) -> type:
    """Return a class whose method calls `function(self, right, …)`; `right` is the correct port's method."""
    name = list(inspect.signature(function).parameters)[1]
    method = f"__{name}__" if name in ("call", "init") else name

    def overriding(self: Any, *given: Any, **named: Any) -> Any:
        return function(self, functools.partial(getattr(super(made, self), method)), *given, **named)

    made = type(function.__name__, (), {method: overriding, "__doc__": function.__doc__})
    return made
