"""Judge whether the checker detects, locates and names each planted bug, and reports the right line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meta.pool.bug import Bug, View
from meta.trial import Answer, Measure
from transparity_conformance.report.audit import CAUSES
from transparity_conformance.report.check.findings import remedy
from transparity_conformance.report.report import Report

Fault = Mapping[str, Any]

FAULT = ("where", "probe", "source", "causes", "error", "budget", "indistinguishable")
CAUSE = ("mistake", "says", "at", "residual")
"""The judged parts of a divergence and of a cause, by their names in a report's JSON."""

NOTHING_ELSE = "The rest agrees."
"""The sentence with which a report promises that nothing else differs."""

Way = Literal["", "verdict", "error", "audit"]


def answer_of(report: Report, folder: Path) -> dict[str, Any]:
    """Return the judged parts of a report, as JSON values; paths of the port's files are relative to `folder`."""
    shown = report.as_dict()
    faults = [{key: fault[key] for key in FAULT} for fault in shown["faults"]]
    for fault in faults:
        fault["causes"] = [{key: cause[key] for key in CAUSE} for cause in fault["causes"]]
        if fault["source"]:
            fault["source"]["file"] = relative(fault["source"]["file"], folder)
    audited = [each for part in ("fields", "tensors") for each in (shown["audit"] or {}).get(part, ())]
    return {name: shown[name] for name in ("verdict", "not_compared", "notes")} | {
        "error": "",
        "faults": faults,
        "audit": {each["name"]: each["outcome"] for each in audited if each["outcome"] in CAUSES},
        "nothing_else": bool(remedy(report)),
    }


def relative(file: str, folder: Path) -> str:
    inside = file.removeprefix(f"{folder}/")
    return inside.rpartition("/site-packages/")[2] if inside == file else inside


@dataclass(frozen=True)
class Judged:
    """The judgment of one answer.

    Attributes:
        detected: `verdict`, `error` (it names the tensor or field) or `audit`; empty if the bug was missed.
        placed: whether the first divergence is in the part that has the bug; None if the bug has no `sites`.
        named: whether the first cause is right, or indistinguishable from a right one.
        falsely: the causes that are neither right nor indistinguishable from a right one.
        line: whether the line of the first divergence is right; None if no line can be.
        says: a summary of the answer.
        rules: the common rules that detect the bug.
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


def judged(bug: Bug, answer: Answer, twin: Answer | None = None) -> Judged:
    """Judge the answer to a bug or a control. Leave out findings that the audit of the unchanged twin also has."""
    way = _way(bug, answer, twin)
    faults = answer["faults"]
    first = faults[0] if faults else None
    explained = next((fault for fault in faults if fault["causes"]), None)
    is_forward = way == "verdict"
    return Judged(
        bug.id,
        bug.control,
        way,
        first is not None and bug.shows_at(place_of(first)) if is_forward and bug.sites else None,
        bool(explained and names(explained) & set(bug.causes)) if is_forward else bool(way),
        tuple(dict.fromkeys(name for fault in faults for name in _false_causes([bug], fault))),
        is_line(bug, first) if is_forward and not bug.control and (bug.uses or not bug.is_in_loader) else None,
        says(answer, "mistake"),
        tuple(answer["rules"]),
        answer["seconds"],
    )


def _way(bug: Bug, answer: Answer, twin: Answer | None) -> Way:
    if answer["verdict"] == "diverges":
        return "verdict"
    if answer["error"]:
        return "error" if bug.control or any(name in answer["error"] for name in bug.told) else ""
    told = set(bug.told)
    found = answer["audit"].keys() - (twin["audit"].keys() if twin else set())
    return "audit" if (found - told if bug.control else found & told) else ""


def names(fault: Fault) -> set[str]:
    """Return the first cause of a fault, and the causes that are indistinguishable from it."""
    return {*(cause["mistake"] for cause in fault["causes"][:1]), *fault["indistinguishable"]}


def _false_causes(bugs: Sequence[Bug], fault: Fault) -> list[str]:
    right = {name for bug in bugs for name in bug.causes}
    if right & names(fault):
        return [each for each in (cause["mistake"] for cause in fault["causes"][1:]) if each not in right]
    return [cause["mistake"] for cause in fault["causes"] if cause["mistake"] not in right]


def falsehoods(bugs: Sequence[Bug], answer: Answer) -> list[str]:
    """Return wrong causes, right causes at wrong taps, and a claim that the rest agrees although a bug is unnamed."""
    told = [fault for fault in answer["faults"] if fault["causes"]]
    false = [name for fault in told for name in _false_causes(bugs, fault)]
    unnamed = {*bugs}
    for fault in told:
        said = {cause["mistake"] for cause in fault["causes"]}
        named = [bug for bug in bugs if {*names(fault), *said} & {*bug.causes}]
        unnamed -= {*named}
        # Judge the place by the bugs that the causes name, not by bugs that only an indistinguishable cause names.
        placed = [bug for bug in named if said & {*bug.causes}]
        place = place_of(fault) if placed else fault["where"]
        if named and place != "logits" and not any(bug.shows or bug.shows_at(place) for bug in placed or named):
            false.append(f"{fault['causes'][0]['mistake']} at {place}")
    return [*dict.fromkeys(false), *[NOTHING_ELSE][: bool(answer.get("nothing_else") and unnamed)]]


def place_of(fault: Fault) -> str:
    at = fault["causes"][0]["at"] if fault["causes"] else ""
    return str(at or fault["where"])


def is_line(bug: Bug, fault: Fault | None, others: Sequence[Bug] = ()) -> bool:
    """Return whether a reported line is right for a bug; the file also contains the bugs `others`."""
    source = fault["source"] if fault is not None else None
    if source is None:
        return False
    if source["file"] != bug.file:
        return any(part in source["code"] for part in bug.uses)
    return source["line"] in bug.right_lines(others)


def says(answer: Answer, cause: Literal["says", "mistake"] = "says") -> str:
    """Return a summary: the verdict, or the first divergence with its line and the sentence or id of its cause."""
    if answer["error"]:
        return f"error: {answer['error']}"
    if not answer["faults"]:
        audit = "; ".join(f"{name}: {outcome}" for name, outcome in answer["audit"].items())
        return f"{answer['verdict']}{f' (audit: {audit})' if audit else ''}"
    fault = answer["faults"][0]
    line = f", {fault['source']['file'].rpartition('/')[2]}:{fault['source']['line']}" if fault["source"] else ""
    named = fault["causes"][0][cause] if fault["causes"] else "unexplained"
    return f"{place_of(fault)}{line}: {named}"


Bugs = Sequence[Bug]


def agrees(bugs: Bugs, answer: Answer) -> bool:
    return bool(answer["verdict"] == "agrees")


def is_detected(bugs: Bugs, answer: Answer) -> bool:
    return bool(answer["verdict"] == "diverges")


def is_placed(bugs: Bugs, answer: Answer) -> bool:
    """Return whether every divergence is at a tap where a bug shows, and every bug shows at one of the divergences."""
    where = [place_of(fault) for fault in answer["faults"]]
    return all(any(bug.shows_at(tap) for bug in bugs) for tap in where) and all(
        any(bug.shows_at(tap) for tap in where) for bug in bugs
    )


def is_named(bugs: Bugs, answer: Answer) -> bool:
    return bool(answer["faults"]) and any(names(answer["faults"][0]) & set(bug.causes) for bug in bugs)


def is_named_where_it_shows(bugs: Bugs, answer: Answer) -> bool:
    shown = [fault for fault in answer["faults"] if fault["where"] == bugs[0].shows]
    return is_detected(bugs, answer) and any(names(fault) & set(bugs[0].causes) for fault in shown)


def all_named(bugs: Bugs, answer: Answer) -> bool:
    """Return whether the report names a right cause for every bug, at the tap where the bug acts."""
    return is_placed(bugs, answer) and all(
        any(bug.shows_at(place_of(fault)) and names(fault) & set(bug.causes) for fault in answer["faults"])
        for bug in bugs
    )


def one_named(bugs: Bugs, answer: Answer) -> bool:
    """Return whether the faults' first causes name every bug, or name some bug while the report mentions a remaining
    error."""
    first = {fault["causes"][0]["mistake"] for fault in answer["faults"] if fault["causes"]}
    right = [bug for bug in bugs if first & set(bug.causes)]
    remains = any(not fault["causes"] or _remains(fault) for fault in answer["faults"])
    return len(right) == len(bugs) or (bool(right) and (remains or any("remain" in note for note in answer["notes"])))


def _remains(fault: Fault) -> bool:
    return float(fault["causes"][0]["residual"]) > float(fault["budget"])


def nothing_else_named(bugs: Bugs, answer: Answer) -> bool:
    """Return whether the port diverges, and every named cause is right or indistinguishable from a right one."""
    made = {name for bug in bugs for name in bug.causes}
    named = ({cause["mistake"], *fault["indistinguishable"]} for fault in answer["faults"] for cause in fault["causes"])
    return is_detected(bugs, answer) and all(causes & made for causes in named)


def is_unnamed(bugs: Bugs, answer: Answer) -> bool:
    certain = [fault for fault in answer["faults"] if fault["causes"] and not fault["indistinguishable"]]
    return is_detected(bugs, answer) and all(map(_remains, certain))


def is_unexplained(bugs: Bugs, answer: Answer) -> bool:
    return is_detected(bugs, answer) and not any(fault["causes"] for fault in answer["faults"])


def is_true(bugs: Bugs, answer: Answer) -> bool:
    return not falsehoods(bugs, answer) and (is_detected(bugs, answer) or all(bug.control for bug in bugs))


def bugs_named(bugs: Bugs, fault: Fault) -> list[Bug]:
    """Return the bugs that a fault names. If several bugs have the same cause, return the bugs at the fault's line."""
    named = {cause["mistake"] for cause in fault["causes"]} | set(fault["indistinguishable"])
    found = [bug for bug in bugs if named & set(bug.causes)]
    at_line = [bug for bug in found if is_line(bug, fault, [other for other in bugs if other is not bug])]
    return [bug for bug in found if bug in at_line or not any(bug.causes == other.causes for other in at_line)]


def _by_bugs(
    title: str, kind: str, view: View | Literal[""], right: Callable[[Bugs, Answer], bool], target: float
) -> Measure:
    """Return a measure; a crash counts as a wrong answer, and a trial in which a bug changes nothing does not count."""

    def judge(trial: Any, answer: Answer) -> bool | None:
        return None if answer["verdict"] == "inert" else not answer["error"] and right(trial.bugs, answer)

    return Measure(title, judge, target, kind, view)


def _drafted(count: Callable[[Any, Answer], tuple[int, int]]) -> Callable[[Any, Answer], tuple[int, int] | None]:
    return lambda trial, answer: count(trial, answer["draft"]) if "draft" in answer else None


def _named_of(step: str) -> Callable[[Any, Answer], tuple[int, int] | None]:
    return _drafted(lambda trial, draft: (len(draft[step]), len(trial.bugs)))


KINDS_OF_TRUTH = {"of any kind": ""} | {f"{kind}s": kind for kind in ("fault", "pair", "triple", "draft")}

MEASURES = (
    _by_bugs("detected, with taps", "fault", "taps", is_detected, 1.0),
    _by_bugs("detected, by logits", "fault", "logits", is_detected, 1.0),
    _by_bugs("detected, by operations", "fault", "operations", is_detected, 1.0),
    _by_bugs("placed, with taps", "fault", "taps", is_placed, 0.98),
    _by_bugs("placed, by operations", "fault", "operations", is_placed, 0.98),
    _by_bugs("named first, with taps", "fault", "taps", is_named, 0.98),
    _by_bugs("named first, by operations", "fault", "operations", is_named, 0.98),
    _by_bugs("named first, by logits", "fault", "logits", is_named, 0.92),
    _by_bugs("two faults: both named at their taps, with taps", "pair", "taps", all_named, 0.98),
    _by_bugs("two faults: both named at their taps, by operations", "pair", "operations", all_named, 0.95),
    _by_bugs("two faults: one named, and a remaining error reported, by logits", "pair", "logits", one_named, 0.95),
    _by_bugs("three faults: all named at their taps, with taps", "triple", "taps", all_named, 0.90),
    _by_bugs("three faults: all named at their taps, by operations", "triple", "operations", all_named, 0.90),
    _by_bugs("three faults: detected, and no false cause, by logits", "triple", "logits", nothing_else_named, 0.90),
    _by_bugs("no false alarm", "control", "", agrees, 1.0),
    _by_bugs("uncatalogued faults: detected", "uncatalogued", "", is_detected, 1.0),
    _by_bugs("uncatalogued faults: placed, with taps", "uncatalogued", "taps", is_placed, 1.0),
    _by_bugs("uncatalogued faults: no cause named", "uncatalogued", "", is_unexplained, 1.0),
    _by_bugs("odd faults: detected, and no certain cause named", "odd", "", is_unnamed, 1.0),
    *(_by_bugs(f"no false statement: {name}", kind, "", is_true, 0.995) for name, kind in KINDS_OF_TRUTH.items()),
    _by_bugs("faults of capabilities named", "capability", "", is_named_where_it_shows, 1.0),
    Measure("drafts: bugs named in one run", _named_of("named"), 0.85),
    Measure("drafts: bugs named after fixes", _named_of("fixed"), 0.95),
    Measure("drafts: right line", _drafted(lambda _, draft: (sum(draft["lines"]), len(draft["lines"]))), 0.90),
)
"""The last three measures judge drafts: the shares of named bugs and of right lines."""
