"""The result of an audit: whether a port follows the fields of a configuration and the tensors of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transparity.text import SENTENCE, safe
from transparity_conformance.report.comparison import Compared
from transparity_conformance.report.formatting import count, some

Outcome = Literal["followed", "ignored", "wrong", "refused", "not exercised"]

WORST_FIRST: tuple[Outcome, ...] = ("ignored", "wrong", "refused", "followed", "not exercised")
"""Outcomes, the most important first; a field has the most important outcome of its tried values."""

ABSENT = "absent"
"""The value of a field that was removed."""

MOST_NAMED = 8
"""The largest number of names in a line of the text report. The JSON report lists all names."""


@dataclass(frozen=True)
class AuditedField(Compared):
    """A field of config.json with one changed value."""

    name: str
    value: str
    """The changed value as JSON; `absent` if the field was removed; or the name of another format of config.json."""
    outcome: Outcome
    """`ignored`: the result does not change; `wrong`: it changes unlike the reference's; `refused`: the port raises."""
    says: str = ""
    """How the port behaves, or why it refuses the value."""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """The difference that remains if the reference has the fault, too; None if no known fault was tried."""

    def __post_init__(self) -> None:
        _clean(self, "name", "value", "says")

    @property
    def counted(self) -> Outcome:
        """The outcome that counts: refusing a config.json without the field counts as following the field."""
        return "followed" if self.outcome == "refused" and self.value == ABSENT else self.outcome


@dataclass(frozen=True)
class AuditedTensor(Compared):
    name: str
    outcome: Literal["read", "never read", "may be missing", "not exercised", "not tried", "not ignored"]
    """`may be missing`: the port accepts a file without the tensor; `not ignored`: an unused tensor has an effect."""
    says: str = ""
    """The value that the port uses instead of the tensor."""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """The difference that remains if the reference has the fault, too; None if no known fault was tried."""

    def __post_init__(self) -> None:
        _clean(self, "name", "says")


CAUSES = {
    "ignored": "field-ignored",
    "wrong": "field-wrong",
    "never read": "tensor-unread",
    "may be missing": "tensor-missing",
    "not ignored": "tensor-stray",
}
"""The id of the cause of each outcome that is a fault."""

FIELD_OUTCOMES: dict[Outcome, str] = {
    "ignored": "ignored",
    "wrong": "obeyed wrongly",
    "refused": "refused with another value",
    "not exercised": "not exercised",
}
TENSOR_OUTCOMES = ("never read", "may be missing", "not ignored", "not exercised", "not tried")
FAULTS = {"ignored", "obeyed wrongly", "never read", "may be missing", "not ignored"}


Part = tuple[str, str, int, dict[str, list[str]], str]


@dataclass(frozen=True)
class Audit:
    """The audited fields of the configuration and tensors of the weights."""

    fields: tuple[AuditedField, ...] = ()
    tensors: tuple[AuditedTensor, ...] = ()
    files: tuple[str, str] = ("config.json", "model.safetensors")
    """The names of the two audited files; `config` and `parameters` for a port without files."""
    seconds: float = field(default=0.0, compare=False)
    """The time of the audit, including the time of the port."""

    def fields_with(self, outcome: Outcome) -> list[str]:
        """Return the names of the fields whose worst outcome, over all tried values, is this one."""
        found: dict[str, Outcome] = {}
        for each in self.fields:
            found[each.name] = min(found.get(each.name, each.counted), each.counted, key=WORST_FIRST.index)
        return [name for name, worst in found.items() if worst == outcome]

    @property
    def _behavior(self) -> list[str]:
        """The port's behavior for each ignored or wrongly followed field, at the first such value."""
        said: dict[str, str] = {}
        for each in self.fields:
            if each.outcome in CAUSES and each.says:
                said.setdefault(each.name, f"– {each.says}")
        return [*said.values()]

    def tensors_with(self, outcome: str) -> list[str]:
        return [each.name for each in self.tensors if each.outcome == outcome]

    @property
    def lines(self) -> list[str]:
        """Lines about the fields, about each fault of a field, and about the tensors."""
        about = [[_line(*part)] * bool(part[2]) for part in self._parts]
        return [*about[0], *self._behavior, *about[1]]

    @property
    def warning(self) -> str:
        """The number of faulty fields and tensors, and the consequence for other folders; empty without faults."""
        nouns = [count(sum(map(len, wrong.values())), noun) for _, noun, _, wrong, _ in self._faults]
        ignored = f"the port ignores {' and '.join(nouns)}, so it may be wrong for another folder (see Audit)"
        return f"{ignored}; --audit makes this a failure" if nouns else ""

    @property
    def faults(self) -> str:
        return "; ".join(_line(*part) for part in self._faults)

    @property
    def _faults(self) -> list[Part]:
        """The parts with faults, without the outcomes that are no faults."""
        wrong = [
            (file, noun, total, {says: names for says, names in found.items() if says in FAULTS}, "")
            for file, noun, total, found, _ in self._parts
        ]
        return [part for part in wrong if any(part[3].values())]

    @property
    def _parts(self) -> tuple[Part, Part]:
        """The arguments of `_line` for fields and tensors: file, noun, total, names by outcome, and usual outcome."""
        fields = {says: self.fields_with(outcome) for outcome, says in FIELD_OUTCOMES.items()}
        tensors = {outcome: self.tensors_with(outcome) for outcome in TENSOR_OUTCOMES}
        number = len({each.name for each in self.fields})
        return (
            (self.files[0], "field", number, fields, "obeyed"),
            (self.files[1], "tensor", len(self.tensors), tensors, "read, and refused if missing"),
        )


def _line(file: str, noun: str, total: int, named: Mapping[str, list[str]], rest: str) -> str:
    """Return `config.json: 1 of 14 fields ignored: rope_theta; 1 refused: hidden_act; 12 obeyed`."""
    found = {says: names for says, names in named.items() if names}
    texts = [f"{len(names):,} {says}: {some(names, MOST_NAMED)}" for says, names in found.items()]
    texts += [f"{total - sum(map(len, found.values())):,} {rest}"] if rest else []
    return f"{file}: " + "; ".join(texts).replace(" ", f" of {count(total, noun)} ", 1)


def _clean(item: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(item, name, safe(getattr(item, name), SENTENCE))
