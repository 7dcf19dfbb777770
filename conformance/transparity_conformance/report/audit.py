"""The result of an audit: whether a port follows every field of a configuration, and reads every tensor of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transparity.text import SENTENCE, safe
from transparity_conformance.report.comparison import Compared
from transparity_conformance.report.formatting import count, some

Outcome = Literal["followed", "ignored", "wrong", "refused", "not exercised"]

WORST_FIRST: tuple[Outcome, ...] = ("ignored", "wrong", "refused", "followed", "not exercised")
"""The outcomes, the most important first. If several values of a field were tried, the field has the most important
outcome."""

ABSENT = "absent"

MOST_NAMED = 8
"""The text report names at most this number of fields or tensors in a line."""


@dataclass(frozen=True)
class AuditedField(Compared):
    """The result of changing a field of config.json."""

    name: str
    value: str
    """The new value as JSON, or `absent` for a removed field. For rotary fields, the text may also describe a changed
    form of config.json."""
    outcome: Outcome
    """`ignored`: the result is unchanged; `wrong`: the new result is wrong; `refused`: the port raises an exception."""
    says: str = ""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """The difference that remains with the port's fault in the reference; None if no known fault was tried."""

    def __post_init__(self) -> None:
        _clean(self, "name", "value", "says")

    @property
    def counted(self) -> Outcome:
        """The outcome in counts: `outcome`, but `followed` if the port refuses a config.json without the field."""
        return "followed" if self.outcome == "refused" and self.value == ABSENT else self.outcome


@dataclass(frozen=True)
class AuditedTensor(Compared):
    name: str
    outcome: Literal["read", "never read", "may be missing", "not exercised", "not ignored"]
    """`may be missing`: the port accepts a file without the tensor; `not ignored`: an additional tensor changes the
    result."""
    says: str = ""
    """A clause about the values that the port uses in place of the tensor."""
    error: float = 0.0
    budget: float = 0.0
    residual: float | None = None
    """The difference that remains if the reference uses the port's values; None if no values were tried."""

    def __post_init__(self) -> None:
        _clean(self, "name", "says")


CAUSES = {
    "ignored": "field-ignored",
    "wrong": "field-wrong",
    "never read": "tensor-unread",
    "may be missing": "tensor-missing",
    "not ignored": "tensor-stray",
}
"""The cause of each outcome that is a fault."""

FIELD_OUTCOMES: dict[Outcome, str] = {
    "ignored": "ignored",
    "wrong": "obeyed wrongly",
    "refused": "for which the port refuses another value",
    "not exercised": "not exercised",
}
ACCIDENTS = ("AttributeError", "IndexError", "KeyError", "TypeError")
"""Exceptions that ports seldom raise on purpose."""

TENSOR_OUTCOMES = ("never read", "may be missing", "not ignored", "not exercised")
FAULTS = {"ignored", "obeyed wrongly", "never read", "may be missing", "not ignored"}


Part = tuple[str, str, int, dict[str, list[str]], str]


@dataclass(frozen=True)
class Audit:
    fields: tuple[AuditedField, ...] = ()
    tensors: tuple[AuditedTensor, ...] = ()
    files: tuple[str, str] = ("config.json", "model.safetensors")
    """The two audited files, or `config` and `parameters` for a port without files."""
    seconds: float = field(default=0.0, compare=False)
    """The duration, including calls of the port."""

    def fields_with(self, outcome: Outcome) -> list[str]:
        """Return the names of the fields whose most important outcome is `outcome`."""
        found: dict[str, Outcome] = {}
        for each in self.fields:
            found[each.name] = min(found.get(each.name, each.counted), each.counted, key=WORST_FIRST.index)
        return [name for name, worst in found.items() if worst == outcome]

    @property
    def _behavior(self) -> list[str]:
        """A line for each field that the port handles wrongly, or for which the port raises one of `ACCIDENTS`."""
        said: dict[str, str] = {}
        for each in self.fields:
            if each.outcome in CAUSES and each.says:
                said.setdefault(each.name, f"– {each.says}")
            elif each.counted == "refused" and any(f"raised {name}" in each.says for name in ACCIDENTS):
                said.setdefault(each.name, f"– with {each.name} {each.value}, {each.says}")
        return [*said.values()]

    def tensors_with(self, outcome: str) -> list[str]:
        return [each.name for each in self.tensors if each.outcome == outcome]

    @property
    def lines(self) -> list[str]:
        about = [[_line(*part)] * bool(part[2]) for part in self._parts]
        return [*about[0], *self._behavior, *about[1]]

    @property
    def failed(self) -> str:
        """The numbers of faulty fields and tensors, such as `6 fields and 1 tensor`."""
        return " and ".join(count(sum(map(len, wrong.values())), noun) for _, noun, _, wrong, _ in self._faults)

    @property
    def warning(self) -> str:
        return "the port may be wrong for other folders; --audit makes this a failure" if self.failed else ""

    @property
    def faults(self) -> str:
        return "; ".join(_line(*part) for part in self._faults)

    @property
    def _faults(self) -> list[Part]:
        wrong = [
            (file, noun, total, {says: names for says, names in found.items() if says in FAULTS}, "")
            for file, noun, total, found, _ in self._parts
        ]
        return [part for part in wrong if any(part[3].values())]

    @property
    def _parts(self) -> tuple[Part, Part]:
        fields = {says: self.fields_with(outcome) for outcome, says in FIELD_OUTCOMES.items()}
        tensors = {outcome: self.tensors_with(outcome) for outcome in TENSOR_OUTCOMES}
        number = len({each.name for each in self.fields})
        return (
            (self.files[0], "field", number, fields, "obeyed"),
            (self.files[1], "tensor", len(self.tensors), tensors, "read, and refused if missing"),
        )


def _line(file: str, noun: str, total: int, named: Mapping[str, list[str]], rest: str) -> str:
    """Return `config.json: 1 of 14 fields ignored: rope_theta; 13 obeyed`. `named` has the names for each outcome;
    `rest` is the outcome of all others."""
    found = {says: names for says, names in named.items() if names}
    texts = [f"{len(names):,} {says}: {some(names, MOST_NAMED)}" for says, names in found.items()]
    texts += [f"{total - sum(map(len, found.values())):,} {rest}"] if rest else []
    return f"{file}: " + "; ".join(texts).replace(" ", f" of {count(total, noun)} ", 1)


def _clean(item: Any, *names: str) -> None:
    for name in names:
        object.__setattr__(item, name, safe(getattr(item, name), SENTENCE))
