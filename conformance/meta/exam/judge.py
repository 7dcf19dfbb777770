"""Whether the checker's answer to a bug is right: detected, placed, named, the right line; its table decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from meta.exam.bug import Bug

Result = Mapping[str, Any]
"""The content of a result.json of `meta.exam.run`."""

Way = Literal["", "verdict", "error", "audit"]


@dataclass(frozen=True)
class Judged:
    """The judgement of one answer.

    Attributes:
        detected: by the verdict, an error that names the tensor or field, or by the audit; empty: missed.
        placed: the first divergence is in the part that has the bug; None: the bug tells no part.
        named: the first cause, or one that is said to be indistinguishable from it, is right.
        falsely: the causes that are neither right nor said to be indistinguishable from a right one.
        line: the line of the first divergence is right; None: it was not found by a forward pass that has it.
        says: the answer in short.
        rules: the rules of today that detect it.
    """

    id: str
    control: bool
    detected: Way
    placed: bool | None
    named: bool
    falsely: tuple[str, ...]
    line: bool | None
    says: str
    rules: tuple[str, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged(bug: Bug, result: Result, twin: Result | None = None) -> Judged:
    """Judge the answer to a bug or a control; what an audit finds in its clean twin, too, detects nothing.

    A control is found wrongly by any verdict but agreement, an error, or an audit that lists more than it may.
    """
    way = _way(bug, result, twin)
    faults = result["faults"]
    first = faults[0] if faults else None
    is_forward = way == "verdict"
    return Judged(
        bug.id,
        bug.control,
        way,
        _is_placed(bug, first) if is_forward and bug.sites else None,
        _is_named(bug, faults) if is_forward else bool(way),
        tuple(dict.fromkeys(name for fault in faults for name in _false_causes(bug, fault))),
        _is_line(bug, first) if is_forward and not bug.control and (bug.uses or not bug.is_in_loader) else None,
        _says(result),
        tuple(result["rules"]),
        result["seconds"],
    )


def _way(bug: Bug, result: Result, twin: Result | None) -> Way:
    if result["verdict"] == "diverges":
        return "verdict"
    if result["error"]:
        return "error" if bug.control or any(name in result["error"] for name in bug.told) else ""
    told = set(bug.told)
    found = result["audit"].keys() - (twin["audit"].keys() if twin else set())
    return "audit" if (found - told if bug.control else found & told) else ""


def _names(fault: Mapping[str, Any]) -> list[str]:
    """The first cause of a fault, and those that it cannot be told from."""
    return [*(cause["mistake"] for cause in fault["causes"][:1]), *fault["indistinguishable"]]


def _is_named(bug: Bug, faults: Sequence[Mapping[str, Any]]) -> bool:
    first = next((fault for fault in faults if fault["causes"]), None)
    return first is not None and bool(set(_names(first)) & set(bug.causes))


def _false_causes(bug: Bug, fault: Mapping[str, Any]) -> list[str]:
    right = set(bug.causes)
    if right & set(_names(fault)):
        return [each for each in (cause["mistake"] for cause in fault["causes"][1:]) if each not in right]
    return [cause["mistake"] for cause in fault["causes"] if cause["mistake"] not in right]


def place_of(fault: Mapping[str, Any]) -> str:
    """The tap of a fault; of a cause that was found in the logits, the tap at which it was put into the reference."""
    at = fault["causes"][0]["at"] if fault["causes"] else ""
    return str(at or fault["where"])


def _is_placed(bug: Bug, fault: Mapping[str, Any] | None) -> bool:
    return fault is not None and any(site in place_of(fault) for site in bug.sites)


def _is_line(bug: Bug, fault: Mapping[str, Any] | None) -> bool:
    source = fault["source"] if fault is not None else None
    if source is None:
        return False
    if source["file"] != bug.file:
        return any(part in source["code"] for part in bug.uses)
    return source["line"] in bug.right_lines()


def _says(result: Result) -> str:
    """The verdict, the first place, its line and its cause."""
    if result["error"]:
        return f"error: {result['error']}"
    if not result["faults"]:
        audit = "; ".join(f"{name}: {outcome}" for name, outcome in result["audit"].items())
        return f"{result['verdict']}{f' (audit: {audit})' if audit else ''}"
    fault = result["faults"][0]
    line = f", {fault['source']['file'].rpartition('/')[2]}:{fault['source']['line']}" if fault["source"] else ""
    cause = fault["causes"][0]["says"] if fault["causes"] else "unexplained"
    return f"{place_of(fault)}{line}: {cause}"
