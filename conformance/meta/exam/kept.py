"""The published results in docs/exam.json: the first and the latest judgment of every bug, by its id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta.exam.bug import exam, twins_by_bug
from meta.page import DOCS
from meta.pool.judge import Judged, judged

FILE = DOCS / "exam.json"

TOLD = ("story", "source", "group", "file", "hidden", "control")
"""The fields of a row that come from the bug's table; they are not stored."""

JUDGED = ("detected", "placed", "named", "falsely", "line")

Row = Mapping[str, Any]


def read(file: Path = FILE) -> dict[str, Row]:
    """Return the published results by id, except rows of removed bugs."""
    found: dict[str, Row] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return {name: told(name) | dict(row) for name, row in found.items() if name in exam()}


def told(name: str) -> dict[str, Any]:
    """Return the fields of a row that come from the bug's table."""
    return {key: getattr(exam()[name], key) for key in TOLD}


def merged(rows: Mapping[str, Row], cache: Path) -> dict[str, Row]:
    """Merge new results from a folder into the rows; a known bug keeps its first judgment.

    Rows of removed bugs are dropped. Bugs without a new result keep their row.
    """
    bugs = exam()
    twins = twins_by_bug(list(bugs.values()))
    results = {name: json.loads(path.read_text("utf-8")) for name in bugs if (path := cache / f"{name}.json").is_file()}
    found = {name: row for name, row in rows.items() if name in bugs}
    for name, result in results.items():
        if result["digest"] != bugs[name].digest():  # the result belongs to an older version of the bug
            continue
        now = judged(bugs[name], result, results.get(twins[name]))
        found[name] = row_of(name, now, rows.get(name))
    return {name: found[name] for name in bugs if name in found}


def row_of(name: str, now: Judged, before: Row | None) -> Row:
    """Return the row of a bug with a new judgment."""
    judgment = {key: getattr(now, key) for key in JUDGED}
    first = judgment if before is None else before["first"]
    return {
        **told(name),
        "rules": list(now.rules),
        "seconds": now.seconds,
        **judgment,
        "says": now.says,
        "first": first,
    }


def with_first_sight(rows: Mapping[str, Row], cache: Path) -> dict[str, Row]:
    """Return the rows with the judgments from a folder as their first judgments."""
    first = merged({}, cache)
    return {name: {**row, "first": first[name]["first"]} if name in first else row for name, row in rows.items()}


def write(rows: Mapping[str, Row], file: Path = FILE) -> None:
    """Write what was measured, a row per line."""
    measured = {name: {key: row[key] for key in row if key not in TOLD} for name, row in rows.items()}
    lines = (f" {json.dumps(name)}: {json.dumps(row, ensure_ascii=False)}" for name, row in measured.items())
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def judgments(rows: Mapping[str, Row], *, first: bool = False) -> list[Judged]:
    """Return the first or the latest judgment of each row."""
    found = []
    for name, row in rows.items():
        shown = row["first"] if first else row
        named = {key: shown[key] for key in JUDGED} | {"falsely": tuple(shown["falsely"])}
        kept = {key: row[key] for key in ("control", "seconds", "says")}
        found.append(Judged(name, rules=tuple(row["rules"]), **kept, **named))
    return found
