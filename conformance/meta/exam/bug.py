"""The bugs of the exam, read from bugs/, and for each bug the same port without the bug (its twin)."""

import functools
import itertools
import json
from collections.abc import Sequence
from pathlib import Path

from meta.pool.bug import Bug, read_folder

BUGS = Path(__file__).parent / "bugs"


def twin_of(bug: Bug, number: int) -> Bug:
    """Return the twin of a bug: the same subject unchanged, with which the checker must agree."""
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
    """Return the bugs, preceded by their twins; bugs with equal settings share one twin."""
    settings: dict[str, Bug] = {}
    counts: dict[str, int] = {}
    for bug in bugs:
        if (key := _setting(bug)) not in settings:
            number = counts[bug.group] = counts.get(bug.group, -1) + 1
            settings[key] = twin_of(bug, number)
    return [*settings.values(), *bugs]


@functools.cache
def exam() -> dict[str, Bug]:
    groups = itertools.groupby(read_folder(BUGS), lambda bug: bug.group)
    return {bug.id: bug for _, bugs in groups for bug in with_twins(list(bugs))}


@functools.cache
def twins() -> dict[str, str]:
    by_setting = {_setting(bug): bug.id for bug in exam().values() if bug.is_twin}
    return {bug.id: by_setting[_setting(bug)] for bug in exam().values()}
