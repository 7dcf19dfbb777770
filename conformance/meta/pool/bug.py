"""A planted bug: an edit of one file, and the answers that count as right, as a row of a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import re
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, Literal


class PoolError(ValueError):
    """A table does not describe a bug, or a file lacks the text that an edit replaces."""


def rows(path: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table. Top-level fields are defaults of each row; the top-level `config` is merged with the
    row's `config`."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    are_rows = [
        name for name, value in tables.items() if value and isinstance(value, list) and isinstance(value[0], dict)
    ]
    shared = {name: value for name, value in tables.items() if name not in are_rows}
    merged = {"config": shared["config"]} if "config" in shared else {}
    return [shared | row | {name: value | row.get(name, {}) for name, value in merged.items()} for row in tables[table]]


def edited(text: str, old: str, new: str, nth: int | None = None, where: str = "the text") -> str:
    """Replace the only occurrence of `old` by `new`; with `nth`, replace occurrence number `nth`. Raise `PoolError` if
    that occurrence does not exist."""
    count = text.count(old)
    if count != 1 and nth is None:
        raise PoolError(f"{where} has {count} places with {old!r}; expected one place, or `nth` to choose one.")
    if nth is not None and not 1 <= nth <= count:
        raise PoolError(f"{where} has {count} places with {old!r}; nth = {nth} is out of range.")
    begin = -1
    for _ in range(nth or 1):
        begin = text.index(old, begin + 1)
    return text[:begin] + new + text[begin + len(old) :]


def edited_copy(path: Path, folder: Path, old: str, new: str) -> Path:
    copy = folder / path.name
    copy.write_text(edited(path.read_text(encoding="utf-8"), old, new, where=path.name), encoding="utf-8")
    return copy


class PatchedFinder(MetaPathFinder):
    """An import finder that loads the module of the file `original` from the file `patched`."""

    def __init__(self, original: Path, patched: Path) -> None:
        self.original, self.patched = original.resolve(), patched

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self.original:
            return None
        return spec_from_file_location(
            fullname, self.patched, submodule_search_locations=spec.submodule_search_locations
        )


View = Literal["taps", "logits", "operations"]
"""The part of a port that the checker sees: its taps, only its logits, or its logits and recorded operations."""

META = Path(__file__).parents[1]

ROOTS = (META / "exam", META / "independent", Path(sysconfig.get_path("purelib")))
"""Folders that may contain a bug's file, in the order of the search."""


@dataclass(frozen=True)
class Bug:
    """An edit of one file of a subject.

    Attributes:
        id: unique in its pool, such as `llama-x05`.
        group: the stem of the TOML file.
        subject: the module of `meta.exam.subjects` that loads the changed code; for an attack, its configuration.
        story: a phrase that states the mistake.
        source: the thread of the real bug; empty for an invented bug.
        file: the changed file, relative to one of `ROOTS`.
        hunks: texts that occur once (or `nth`), each with its replacement; empty for an unchanged twin.
        acts: a condition on fields of the configuration under which the changed line runs; empty for always.
        shows: the capability in which the bug is visible, such as `generate.lengths`; empty for the forward pass.
        causes: the ids of right causes; empty if the catalogue has none.
        told: words in a right audit or error (fields, tensors); for a control, names that an audit may report.
        sites: patterns of the taps at which a divergence is placed rightly.
        lines: texts of further lines that count as right.
        uses: texts of right lines in other files; for a bug in a loader, lines that use the wrong tensor.
        config: changes of the subject's configuration; for a family, of fields in its config.json.
        family: the family of the folders that the subject loads; empty for a `build`.
        port: the function of the subject.
        hidden: the only place where the bug is visible.
        control: whether the edit is correct, so that the checker must agree.
        columns: the same bug in our columns: `case` is a model of oracle/cases.json that shows the bug (on the inputs
            `probe`, by default `mixed`), and `file` the file with the texts `old` and `new`. `pytorch`, `flax` and
            `numpy` have the texts of a column with other code. The page of the first cause shows these texts.
        dtype: the precision with which the port is checked.
    """

    id: str
    group: str
    subject: str = ""
    story: str = ""
    file: str = ""
    hunks: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    acts: str = ""
    shows: str = ""
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
    columns: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"

    def __hash__(self) -> int:
        return hash((self.group, self.id))

    def __str__(self) -> str:
        return self.id

    @property
    def is_twin(self) -> bool:
        return not self.hunks

    @property
    def is_in_loader(self) -> bool:
        return self.file.startswith("subjects/")

    @property
    def path(self) -> Path:
        return next((root / self.file for root in ROOTS if (root / self.file).is_file()), ROOTS[-1] / self.file)

    def runs_in(self, config: Any) -> bool:
        return not self.acts or bool(eval(self.acts, {}, _Fields(config)))

    def shows_at(self, tap: str) -> bool:
        return any(re.search(site, tap) for site in self.sites)

    def text(self) -> str:
        return text_of(self.path, [self])

    def right_lines(self, others: Sequence[Bug] = ()) -> set[int]:
        """Return the lines at which a report of this bug is right, if the file also contains the bugs `others`."""
        same = [bug for bug in others if bug.path == self.path]
        before, text = text_of(self.path, same), text_of(self.path, [*same, self])
        return changed_lines(before, text) | {line for part in self.lines for line in lines_with(text, part)}


class _Fields(dict[str, Any]):
    """The names available to a condition `acts`: the fields of a configuration, `c` itself, and its `layers`."""

    def __init__(self, config: Any) -> None:
        super().__init__(c=config, layers=list(config.layer_kinds.values()))

    def __missing__(self, name: str) -> Any:
        if not hasattr(self["c"], name):
            raise KeyError(name)
        return getattr(self["c"], name)


def text_of(path: Path, bugs: Sequence[Bug]) -> str:
    text = path.read_text(encoding="utf-8")
    for bug in bugs:
        for hunk in bug.hunks:
            text = edited(text, hunk["old"], hunk["new"], hunk.get("nth"), f"{bug.id}: {bug.file}")
    return text


def changed_lines(before: str, after: str) -> set[int]:
    """Return the lines of `after` that differ from `before`, with one line before and after each change."""
    codes = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    return {line for kind, _, _, begin, end in codes if kind != "equal" for line in range(begin, end + 2)}


def lines_with(text: str, part: str) -> list[int]:
    found: list[int] = []
    for match in re.finditer(re.escape(part), text):
        first = text.count("\n", 0, match.start()) + 1
        found += range(first, first + part.rstrip("\n").count("\n") + 1)
    return found


FIELDS = {each.name for each in dataclasses.fields(Bug)} - {"id", "group", "subject", "hunks"}
LISTS = {"causes", "told", "sites", "lines", "uses"}


def read(path: Path) -> list[Bug]:
    return [_bug(path.stem, row) for row in rows(path, "bug")]


def _bug(group: str, given: dict[str, Any]) -> Bug:
    name, subject = given.pop("id", ""), given.pop("subject", group)
    single = [{key: given.pop(key) for key in ("old", "new", "nth") if key in given}]
    hunks = tuple(given.pop("hunks", [each for each in single if each]))
    if unknown := given.keys() - FIELDS:
        raise PoolError(f"{group}: {name} has the unknown field {min(unknown)!r}.")
    if not (hunks and all({"old", "new"} <= hunk.keys() for hunk in hunks)):
        raise PoolError(f"{group}: {name} changes nothing; expected old and new.")
    if not given.get("control") and "causes" not in given:
        raise PoolError(f"{group}: {name} has no causes; expected a list, empty if the catalogue has none for it.")
    listed: dict[str, Any] = {key: tuple(value) if key in LISTS else value for key, value in given.items()}
    return Bug(name, group, subject, hunks=hunks, **listed)


def read_folder(folder: Path) -> list[Bug]:
    """Return the bugs of all TOML files in a folder; raise `PoolError` if two have the same id."""
    bugs = [bug for path in sorted(folder.glob("*.toml")) for bug in read(path)]
    if twice := {bug.id for bug in bugs if sum(bug.id == other.id for other in bugs) > 1}:
        raise PoolError(f"Two bugs have the id {min(twice)!r}; rename one of them.")
    return bugs
