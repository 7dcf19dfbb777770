"""Names of hub tensors, and the parameters that they contain."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]

Part = tuple[str, Convert]
"""A parameter, and the function that computes it from a tensor."""

Join = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is stored in another form than ours."""

    parts: tuple[Part, ...]
    """Its parameters, each with its conversion."""
    join: Join
    """Combines the parameters into the tensor; the inverse of all conversions."""


Table = Mapping[str, str | StoredTensor]
"""Hub names, with `{i}` for a layer and `{e}` for an expert, mapped to our parameter or to parts of a tensor.

Two names of one parameter must have equal numbers; the first name is written.
"""


def transposed(name: str) -> StoredTensor:
    """Return a matrix that is stored as (in, out)."""
    return StoredTensor(((name, np.transpose),), lambda parts: np.transpose(parts[0]))


def flat(name: str) -> StoredTensor:
    """Return a vector that is stored as a matrix of one row."""
    return StoredTensor(((name, np.ravel),), lambda parts: parts[0][np.newaxis])


def stacked(rows: Mapping[str, int]) -> StoredTensor:
    """Return parameters with these numbers of rows, stacked in one tensor."""
    return by_group(rows, 1)


def by_group(rows: Mapping[str, int], groups: int) -> StoredTensor:
    """Return parameters side by side in each group of heads, with these numbers of rows."""
    ends = itertools.accumulate(rows.values(), initial=0)
    cuts = zip(rows, itertools.pairwise(ends), strict=True)
    parts = tuple((name, functools.partial(_of_groups, groups, slice(*cut))) for name, cut in cuts)
    return StoredTensor(parts, functools.partial(_joined, groups))


def _of_groups(groups: int, cut: slice, tensor: np.ndarray) -> np.ndarray:
    return tensor.reshape(groups, -1, *tensor.shape[1:])[:, cut].reshape(-1, *tensor.shape[1:])


def _joined(groups: int, parts: Sequence[np.ndarray]) -> np.ndarray:
    cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
    return np.concatenate(cut, axis=1).reshape(-1, *parts[0].shape[1:])


def linears(pairs: Mapping[str, str], theirs: str = "", ours: str = "") -> dict[str, str | StoredTensor]:
    """Return the names of `weight` and `bias` of linear maps and norms, in the scopes `theirs` and `ours`."""
    return weights(pairs, theirs, ours, ("weight", "bias"))


def weights(
    pairs: Mapping[str, str], theirs: str = "", ours: str = "", leaves: Sequence[str] = ("weight",)
) -> dict[str, str | StoredTensor]:
    """Return the names of the `weight` of linear maps or norms without a bias."""
    there, here = (f"{scope}." if scope else "" for scope in (theirs, ours))
    return {f"{there}{name}.{leaf}": f"{here}{own}.{leaf}" for name, own in pairs.items() for leaf in leaves}


def projections(query: str, key: str, value: str, output: str) -> dict[str, str]:
    """Return the projection names of an attention layer."""
    return {query: "query", key: "key", value: "value", output: "output"}


GATED = {f"{role}_proj": role for role in ("gate", "up", "down")}
"""The names of the projections of a gated feed-forward."""


def without(table: Table, *parts: str) -> dict[str, str | StoredTensor]:
    """Return the table without tensors whose names contain one of the `parts`."""
    return {theirs: ours for theirs, ours in table.items() if not any(part in theirs for part in parts)}


def parts_of(names: Iterable[str], table: Table, prefixes: Sequence[str]) -> dict[str, tuple[Part, ...]]:
    """Return the parts of each hub name that is in the table."""
    patterns = [(_pattern(theirs), _as_parts(ours)) for theirs, ours in table.items()]
    found = {}
    for name in names:
        bare = without_prefix(name, prefixes)
        for pattern, parts in patterns:
            if match := pattern.fullmatch(bare):
                found[name] = tuple((_numbered(ours, match.groupdict()), make) for ours, make in parts)
    return found


def without_prefix(name: str, prefixes: Sequence[str]) -> str:
    """Return the hub's name without a prefix, as in the table."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def is_any_of(name: str, patterns: Collection[str], prefixes: Sequence[str]) -> bool:
    """Return whether the hub's `name` matches one of the `patterns`."""
    return any(_pattern(pattern).fullmatch(without_prefix(name, prefixes)) for pattern in patterns)


def called(parameter: str, table: Table) -> str:
    """Return the hub's first name of one of our parameters."""
    found = _entry(parameter, table)
    return parameter if found is None else _numbered(found[0], dict(found[1]))


def tensors_of(parameters: Mapping[str, np.ndarray], table: Table) -> dict[str, np.ndarray]:
    """Return the hub tensors that contain `parameters`, under their first name, without a prefix.

    This is the inverse of `parts_of`. A tensor has the dtype of its parameters. Parameters without a name are left out.
    """
    entries = {ours: found for ours in parameters if (found := _entry(ours, table)) is not None}
    tensors = {}
    for theirs, found_numbers in dict.fromkeys(entries.values()):
        stored, numbers = table[theirs], dict(found_numbers)
        names = [_numbered(ours, numbers) for ours, _ in _as_parts(stored)]
        if any(name not in parameters for name in names):
            continue
        parts = [parameters[name] for name in names]
        tensor = parts[0] if isinstance(stored, str) else stored.join(parts)
        tensors[_numbered(theirs, numbers)] = np.ascontiguousarray(tensor)
    return tensors


def _entry(parameter: str, table: Table) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Return the first table name of our parameter and its numbers; None if it has no name."""
    for theirs, ours in table.items():
        for name, _ in _as_parts(ours):
            if match := _pattern(name).fullmatch(parameter):
                return theirs, tuple(match.groupdict().items())
    return None


def _as_parts(ours: str | StoredTensor) -> tuple[Part, ...]:
    return ((ours, np.asarray),) if isinstance(ours, str) else ours.parts


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(i|e)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def _numbered(name: str, numbers: Mapping[str, str]) -> str:
    """Return a name of the table with the numbers of a layer and an expert."""
    for key, number in numbers.items():
        name = name.replace(f"{{{key}}}", number)
    return name
