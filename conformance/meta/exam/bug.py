"""Bugs of the exam: changes of a file of a subject, and what is a right answer; each is a table of a file in bugs/."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta.drafts.draft import lines_with

EXAM = Path(__file__).parent
BUGS = EXAM / "bugs"


class ExamError(ValueError):
    """A table that describes no bug."""


@dataclass(frozen=True)
class Bug:
    """A change of one file of a subject.

    Attributes:
        id: the subject and a name, such as `llama-x05`.
        group: the stem of the TOML file.
        subject: the module of `meta.exam.subjects`.
        story: what is wrong, in one phrase.
        source: the thread of the real bug; empty for a plausible one.
        file: relative to the installed packages, or to this folder (`subjects/NAME.py`).
        hunks: text that is there exactly once (or `nth`), and what replaces it; none for a clean twin.
        causes: ids of the causes that name it rightly; none: the catalogue has no name for it.
        told: words of a right audit or error (fields, tensors); of a control, what an audit may list.
        sites: parts of the taps at which it is placed rightly.
        lines: text of further lines that are right to point at.
        uses: the same of other files: for a fault of loading, the lines that use what was loaded wrongly.
        config: changes of the subject's configuration; of a family, of the fields of its config.json.
        family: the family of the folders that a loader reads; empty for a `build`.
        port: the subject's function.
        hidden: where alone it shows.
        control: changes nothing, and must not be called a bug.
        dtype: the precision that is declared.
    """

    id: str
    group: str
    subject: str
    story: str
    file: str = ""
    hunks: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    causes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    family: str = ""
    port: str = ""
    hidden: str = "any"
    control: bool = False
    dtype: str = "float32"

    @property
    def is_twin(self) -> bool:
        return not self.hunks

    @property
    def is_in_loader(self) -> bool:
        """Whether the mistake is in the loader of a subject, so that no line of a forward pass has it."""
        return self.file.startswith("subjects/")

    @property
    def path(self) -> Path:
        """The file, where it is installed."""
        own = EXAM / self.file
        return own if own.is_file() else Path(sysconfig.get_path("purelib"), self.file)

    def text(self) -> str:
        """The file with the bug in it; raises `ExamError` unless each place is there."""
        text = self.path.read_text(encoding="utf-8")
        for hunk in self.hunks:
            text = _replaced(text, hunk, f"{self.id}: {self.file}")
        return text

    def right_lines(self) -> set[int]:
        """The numbers of the lines of `text()` that are right to point at."""
        before, text = self.path.read_text(encoding="utf-8").splitlines(), self.text()
        changes = difflib.SequenceMatcher(None, before, text.splitlines(), autojunk=False).get_opcodes()
        found = {line for part in self.lines for line in lines_with(text, part)}
        for kind, _, _, begin, end in changes:
            if kind != "equal":
                found |= set(range(begin, end + 2))  # with the lines before and behind; lines count from 1
        return found

    def digest(self) -> str:
        """Changes with all that its result depends on, but the checker and what is installed."""
        own = [path.read_bytes() for path in sorted((EXAM / "subjects").glob(f"{self.subject}*.py"))]
        asked = [self.file, self.hunks, self.config, self.family, self.port, self.dtype]
        return hashlib.sha256(json.dumps(asked, default=dict).encode() + b"".join(own)).hexdigest()[:16]


def _replaced(text: str, hunk: Mapping[str, Any], where: str) -> str:
    old, nth = hunk["old"], hunk.get("nth")
    count = text.count(old)
    if count != 1 and nth is None:
        raise ExamError(f"{where} has {count} places with {old!r}; expected one, or its number as nth.")
    if nth is not None and not 1 <= nth <= count:
        raise ExamError(f"{where} has {count} places with {old!r}; there is no nth = {nth}.")
    begin = -1
    for _ in range(nth or 1):
        begin = text.index(old, begin + 1)
    return text[:begin] + hunk["new"] + text[begin + len(old) :]


FIELDS = {each.name for each in dataclasses.fields(Bug)} - {"id", "group", "subject", "hunks"}
LISTS = {"causes", "told", "sites", "lines", "uses"}


def read(path: Path) -> list[Bug]:
    """The bugs of a TOML file. Fields outside of the tables of bugs are those of every bug that has none of its own."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    shared = {"subject": path.stem, **tables}
    return [
        _bug(path.stem, {name: value for name, value in shared.items() if name != "bug"}, row) for row in tables["bug"]
    ]


def _bug(group: str, shared: Mapping[str, Any], row: Mapping[str, Any]) -> Bug:
    given = {**shared, **row, "config": {**shared.get("config", {}), **row.get("config", {})}}
    name, subject = given.pop("id", ""), given.pop("subject")
    single = [{key: given.pop(key) for key in ("old", "new", "nth") if key in given}]
    hunks = tuple(given.pop("hunks", [each for each in single if each]))
    if unknown := given.keys() - FIELDS:
        raise ExamError(f"{group}: {name} has the unknown field {min(unknown)!r}.")
    if not (hunks and all({"old", "new"} <= hunk.keys() for hunk in hunks)):
        raise ExamError(f"{group}: {name} changes nothing; expected old and new.")
    if not given.get("control") and "causes" not in given:
        raise ExamError(f"{group}: {name} has no causes; expected a list, empty if the catalogue has none for it.")
    listed: dict[str, Any] = {key: tuple(value) if key in LISTS else value for key, value in given.items()}
    return Bug(name, group, subject, hunks=hunks, **listed)


def twin_of(bug: Bug, number: int) -> Bug:
    """The same subject as it is, which has to agree."""
    changes = ", ".join(f"{name} = {json.dumps(value)}" for name, value in bug.config.items())
    return Bug(
        f"{bug.group}-twin{number or ''}",
        bug.group,
        bug.subject,
        f"unchanged ({', '.join(filter(None, [bug.port, changes]))})" if bug.port or changes else "unchanged",
        config=bug.config,
        family=bug.family,
        port=bug.port,
        control=True,
        dtype=bug.dtype,
    )


def _setting(bug: Bug) -> str:
    return json.dumps([bug.group, bug.subject, bug.family, bug.port, bug.dtype, dict(bug.config)])


def with_twins(bugs: Sequence[Bug]) -> list[Bug]:
    """The bugs, behind a clean twin for each setting that they are run in."""
    settings: dict[str, Bug] = {}
    counts: dict[str, int] = {}
    for bug in bugs:
        if (key := _setting(bug)) not in settings:
            number = counts[bug.group] = counts.get(bug.group, -1) + 1
            settings[key] = twin_of(bug, number)
    return [*settings.values(), *bugs]


def twins_by_bug(bugs: Sequence[Bug]) -> dict[str, str]:
    """The id of the clean twin of each bug."""
    twins = {_setting(bug): bug.id for bug in bugs if bug.is_twin}
    return {bug.id: twins[_setting(bug)] for bug in bugs}


@functools.cache
def exam() -> dict[str, Bug]:
    """All bugs and their twins, by id."""
    bugs = [bug for path in sorted(BUGS.glob("*.toml")) for bug in with_twins(read(path))]
    by_id = {bug.id: bug for bug in bugs}
    if len(by_id) < len(bugs):
        raise ExamError("Two bugs have the same id.")
    return by_id
