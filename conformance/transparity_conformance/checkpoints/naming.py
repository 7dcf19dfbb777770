"""Names of tensors on a hub, and the parameters that they become."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]

Part = tuple[str, Convert]
"""A parameter, and the function that computes it from a tensor."""

Table = Mapping[str, str | tuple[Part, ...]]
"""The hub's names, with `{i}` for the number of a layer, and ours: one parameter, or the parts that a tensor is split
into. Two names of one parameter have to hold the same numbers."""


def transposed(name: str) -> tuple[Part, ...]:
    """A matrix that is stored as (in, out)."""
    return ((name, np.transpose),)


def flat(name: str) -> tuple[Part, ...]:
    """A vector that is stored as a matrix of one row."""
    return ((name, np.ravel),)


def linears(pairs: Mapping[str, str]) -> dict[str, str | tuple[Part, ...]]:
    """The names of the `weight` and the `bias` of each linear map or norm."""
    return {f"{theirs}.{leaf}": f"{ours}.{leaf}" for theirs, ours in pairs.items() for leaf in ("weight", "bias")}


def parts_of(names: Iterable[str], table: Table, prefixes: Sequence[str]) -> dict[str, tuple[Part, ...]]:
    """The parts of each of the hub's `names` that is in the table."""
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
    """The hub's name as it is in the table."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def is_any_of(name: str, patterns: Collection[str], prefixes: Sequence[str]) -> bool:
    """Return whether the hub's `name` matches one of the `patterns`."""
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
