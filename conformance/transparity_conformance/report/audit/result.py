"""The result of an audit: whether a port follows the fields of a configuration and the tensors of a file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transparity.text import SENTENCE, safe
from transparity_conformance.report.formatting import count

Outcome = Literal["followed", "ignored", "wrong", "refused", "not exercised"]

WORST_FIRST: tuple[Outcome, ...] = ("ignored", "wrong", "followed", "refused", "not exercised")
"""Outcomes by priority; the first one among the values of a field is the field's outcome."""

MOST_NAMED = 8
"""Names in a line for people; JSON lists all."""


@dataclass(frozen=True)
class AuditedField:
    """A field of the configuration with another value."""

    name: str
    value: str
    """The other value as JSON, `absent`, or the form of the file."""
    outcome: Outcome
    """`ignored`: the port answers as before the change; `wrong`: it gives a third answer; `refused`: it raises."""
    says: str = ""
    """The port's behavior, or its reason to refuse."""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """The remaining difference from the reference with the same fault; None if unexplained."""

    def __post_init__(self) -> None:
        _clean(self, "name", "value", "says")


@dataclass(frozen=True)
class AuditedTensor:
    """A tensor of the file."""

    name: str
    outcome: Literal["read", "never read", "may be missing", "not exercised", "not tried", "not ignored"]
    """`may be missing`: without it, the port answers without a warning; `not ignored`: no model reads it."""
    says: str = ""
    """The value that the port uses in its place."""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """As of a field."""

    def __post_init__(self) -> None:
        _clean(self, "name", "says")


CAUSES = {
    "ignored": "field-ignored",
    "wrong": "field-wrong",
    "never read": "tensor-unread",
    "may be missing": "tensor-missing",
    "not ignored": "tensor-stray",
}
"""The outcomes that are faults, and the ids of their causes."""

FIELD_OUTCOMES: dict[Outcome, str] = {
    "ignored": "ignored",
    "wrong": "obeyed wrongly",
    "refused": "refused",
    "not exercised": "not exercised",
}
TENSOR_OUTCOMES = ("never read", "may be missing", "not ignored", "not exercised", "not tried")
FAULTS = {"ignored", "obeyed wrongly", "never read", "may be missing", "not ignored"}
"""The outcomes that are faults, in words."""


@dataclass(frozen=True)
class Audit:
    """The fields and tensors of a port."""

    fields: tuple[AuditedField, ...] = ()
    tensors: tuple[AuditedTensor, ...] = ()
    files: tuple[str, str] = ("config.json", "model.safetensors")
    """Where the fields and the tensors are: the files of a loader, or `config` and `parameters` of a `build`."""
    seconds: float = field(default=0.0, compare=False)
    """The time that it took, the port's own included."""

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self)

    def fields_with(self, outcome: Outcome) -> list[str]:
        """The names of the fields whose worst value has an outcome."""
        found: dict[str, Outcome] = {}
        for each in self.fields:
            found[each.name] = min(found.get(each.name, each.outcome), each.outcome, key=WORST_FIRST.index)
        return [name for name, worst in found.items() if worst == outcome]

    def _told(self, outcome: Outcome) -> list[str]:
        """The names of the fields with an outcome; a field that is not obeyed includes the port's behavior."""
        does = {each.name: each.says for each in reversed(self.fields) if each.outcome == outcome and outcome in CAUSES}
        return [f"{name} ({does[name]})" if does.get(name) else name for name in self.fields_with(outcome)]

    def tensors_with(self, outcome: str) -> list[str]:
        """The names of the tensors with an outcome."""
        return [each.name for each in self.tensors if each.outcome == outcome]

    @property
    def lines(self) -> list[str]:
        """Lines for people, one on the fields and one on the tensors."""
        return [_line(*part) for part in self._parts if part[2]]

    @property
    def faults(self) -> str:
        """The faults, in one clause; empty without a fault."""
        wrong = (
            (file, noun, total, {says: names for says, names in found.items() if says in FAULTS}, "")
            for file, noun, total, found, _ in self._parts
        )
        return "; ".join(_line(*part) for part in wrong if any(part[3].values()))

    @property
    def _parts(self) -> tuple[tuple[str, str, int, dict[str, list[str]], str], ...]:
        """For fields and tensors: the file, the noun, the count, the names by outcome, and the rest."""
        fields = {says: self._told(outcome) for outcome, says in FIELD_OUTCOMES.items()}
        tensors = {outcome: self.tensors_with(outcome) for outcome in TENSOR_OUTCOMES}
        number = len({each.name for each in self.fields})
        return (
            (self.files[0], "field", number, fields, "obeyed"),
            (self.files[1], "tensor", len(self.tensors), tensors, "read, and refused if missing"),
        )


def _line(file: str, noun: str, total: int, named: Mapping[str, list[str]], rest: str) -> str:
    """`config.json: 1 of 14 fields ignored: rope_theta; 1 refused: hidden_act; 12 obeyed`."""
    found = {says: names for says, names in named.items() if names}
    texts = [f"{len(names):,} {says}: {_some(names)}" for says, names in found.items()]
    texts += [f"{total - sum(map(len, found.values())):,} {rest}"] if rest else []
    return f"{file}: " + "; ".join(texts).replace(" ", f" of {count(total, noun)} ", 1)


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else "")


def _clean(item: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(item, name, safe(getattr(item, name), SENTENCE))
