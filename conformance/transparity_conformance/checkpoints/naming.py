"""What tensors are called on a hub, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

Part = tuple[str, Callable[[np.ndarray], np.ndarray]]
"""A parameter, and what makes it of a tensor."""

Table = Mapping[str, str | tuple[Part, ...]]
"""The hub's names, `{i}` standing for the number of a layer, and ours: the parameter that a tensor is, or the parts
that are made of it. Two names of one parameter have to hold the same numbers."""


def transposed(name: str) -> tuple[Part, ...]:
    """A matrix that is kept as (in, out)."""
    return ((name, np.transpose),)


def flat(name: str) -> tuple[Part, ...]:
    """A row that is kept as a matrix of one row."""
    return ((name, np.ravel),)


def linears(pairs: Mapping[str, str]) -> dict[str, str | tuple[Part, ...]]:
    """The `weight` and the `bias` of each."""
    return {f"{theirs}.{leaf}": f"{ours}.{leaf}" for theirs, ours in pairs.items() for leaf in ("weight", "bias")}


def parts_of(names: Iterable[str], table: Table, prefixes: Sequence[str]) -> dict[str, tuple[Part, ...]]:
    """What each of the hub's `names` is here; those that the table does not have are left out."""
    patterns = [(_pattern(theirs), _as_parts(ours)) for theirs, ours in table.items()]
    found = {}
    for name in names:
        bare = without_prefix(name, prefixes)
        for pattern, parts in patterns:
            if match := pattern.fullmatch(bare):
                layer = match.groupdict().get("i", "")
                found[name] = tuple((ours.replace("{i}", layer), make) for ours, make in parts)
    return found


def without_prefix(name: str, prefixes: Sequence[str]) -> str:
    """The hub's name as the table has it."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def is_any_of(name: str, patterns: Collection[str], prefixes: Sequence[str]) -> bool:
    """Whether one of the `patterns` is the hub's `name`."""
    return any(_pattern(pattern).fullmatch(without_prefix(name, prefixes)) for pattern in patterns)


def called(parameter: str, table: Table) -> str:
    """The hub's name of a parameter of ours, the first of several."""
    for theirs, ours in table.items():
        for name, _ in _as_parts(ours):
            if match := _pattern(name).fullmatch(parameter):
                return theirs.replace("{i}", match.groupdict().get("i", ""))
    return parameter


def _as_parts(ours: str | tuple[Part, ...]) -> tuple[Part, ...]:
    return ((ours, np.asarray),) if isinstance(ours, str) else ours


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(r"\{i\}", r"(?P<i>\d+)"))
