"""Tables of tensor names in Hugging Face files, and of the parameters that each tensor contains."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]

Part = tuple[str, Convert]
"""The name of a parameter, and the function that computes the parameter from a tensor."""

Join = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file that contains one or more parameters in another form, such as a transposed or fused matrix."""

    parts: tuple[Part, ...]
    """The parameters that the tensor contains, each with the function that computes it."""
    join: Join
    """Combines the parameters into the tensor; the inverse of the functions in `parts`."""


Table = Mapping[str, str | StoredTensor]
"""Maps tensor names to a parameter, or to the parameters in a `StoredTensor`.

`{i}` stands for the number of a layer and `{e}` for an expert. If two names map to one parameter, both tensors must
have equal numbers, and files are written with the first name.
"""


def transposed(name: str) -> StoredTensor:
    """Return a table entry for a matrix that is stored as (in, out)."""
    return StoredTensor(((name, np.transpose),), lambda parts: np.transpose(parts[0]))


def flat(name: str) -> StoredTensor:
    """Return a table entry for a vector that is stored as a matrix of one row."""
    return StoredTensor(((name, np.ravel),), lambda parts: parts[0][np.newaxis])


def stacked(rows: Mapping[str, int]) -> StoredTensor:
    """Return a table entry for parameters with these numbers of rows, stacked along the first axis."""
    return by_group(rows, 1)


def by_group(rows: Mapping[str, int], groups: int) -> StoredTensor:
    """Return a table entry for parameters that are interleaved by head groups, with these numbers of rows per group."""
    ends = itertools.accumulate(rows.values(), initial=0)
    cuts = zip(rows, itertools.pairwise(ends), strict=True)

    def part(tensor: np.ndarray, cut: slice) -> np.ndarray:
        return tensor.reshape(groups, -1, *tensor.shape[1:])[:, cut].reshape(-1, *tensor.shape[1:])

    def join(parts: Sequence[np.ndarray]) -> np.ndarray:
        cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
        return np.concatenate(cut, axis=1).reshape(-1, *parts[0].shape[1:])

    return StoredTensor(tuple((name, functools.partial(part, cut=slice(*cut))) for name, cut in cuts), join)


def fused(
    theirs: str, rows: Mapping[str, int], ours: str = "", groups: int = 1, leaves: Sequence[str] = ("weight", "bias")
) -> dict[str, str | StoredTensor]:
    """Return table entries for the `weight` and `bias` of several linear layers that are stored as one; see `by_group`.

    Args:
        theirs: The name of the module in the file.
        rows: The number of rows of each linear layer.
        ours: A prefix of the names in the reference.
        groups: The number of head groups.
        leaves: The tensors of the module.
    """
    here = f"{ours}." if ours else ""
    return {
        f"{theirs}.{leaf}": by_group({f"{here}{name}.{leaf}": count for name, count in rows.items()}, groups)
        for leaf in leaves
    }


def linears(pairs: Mapping[str, str], theirs: str = "", ours: str = "") -> dict[str, str | StoredTensor]:
    """Return table entries for the `weight` and `bias` of linear layers and norms.

    Args:
        pairs: The name of each module in the file, and its name in the reference.
        theirs: A prefix of the names in the file.
        ours: A prefix of the names in the reference.
    """
    return weights(pairs, theirs, ours, ("weight", "bias"))


def weights(
    pairs: Mapping[str, str], theirs: str = "", ours: str = "", leaves: Sequence[str] = ("weight",)
) -> dict[str, str | StoredTensor]:
    """Return table entries for the `weight` of linear layers and norms without a bias; see `linears`."""
    there, here = (f"{scope}." if scope else "" for scope in (theirs, ours))
    return {f"{there}{name}.{leaf}": f"{here}{own}.{leaf}" for name, own in pairs.items() for leaf in leaves}


def projections(query: str, key: str, value: str, output: str) -> dict[str, str]:
    """Return pairs for `linears`: the four projections of an attention layer."""
    return {query: "query", key: "key", value: "value", output: "output"}


GATED = {f"{role}_proj": role for role in ("gate", "up", "down")}
"""Pairs for `linears`: the projections of a gated feed-forward, as most files name them."""


def without(table: Table, *parts: str) -> dict[str, str | StoredTensor]:
    """Return the table without the tensors whose name contains one of the `parts`."""
    return {theirs: ours for theirs, ours in table.items() if not any(part in theirs for part in parts)}


def parts_of(names: Iterable[str], table: Table, prefixes: Sequence[str]) -> dict[str, tuple[Part, ...]]:
    """Return the parameters that each tensor contains, for the tensors that are in the table."""
    patterns = [(_pattern(theirs), _as_parts(ours)) for theirs, ours in table.items()]
    found = {}
    for name in names:
        bare = without_prefix(name, prefixes)
        for pattern, parts in patterns:
            if match := pattern.fullmatch(bare):
                found[name] = tuple((_numbered(ours, match.groupdict()), make) for ours, make in parts)
    return found


def without_prefix(name: str, prefixes: Sequence[str]) -> str:
    """Return a tensor's name without the prefix of a model with a head."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def is_any_of(name: str, patterns: Collection[str], prefixes: Sequence[str]) -> bool:
    """Return whether a tensor's name matches one of the `patterns`."""
    return any(_pattern(pattern).fullmatch(without_prefix(name, prefixes)) for pattern in patterns)


def called(parameter: str, table: Table) -> str:
    """Return the first name of the tensor that contains a parameter; if no tensor does, return the parameter's name."""
    found = _entries([parameter], table).get(parameter)
    return parameter if found is None else _numbered(found[0], dict(found[1]))


def tensors_of(parameters: Mapping[str, np.ndarray], table: Table) -> dict[str, np.ndarray]:
    """Convert parameters to tensors. If the table has several names for a tensor, the first name is used, without a
    prefix.

    This is the inverse of `parts_of`. A tensor has the dtype of its parameters. Parameters that are not in the table
    are left out.
    """
    tensors = {}
    for theirs, found_numbers in dict.fromkeys(_entries(parameters, table).values()):
        stored, numbers = table[theirs], dict(found_numbers)
        names = [_numbered(ours, numbers) for ours, _ in _as_parts(stored)]
        if any(name not in parameters for name in names):
            continue
        parts = [parameters[name] for name in names]
        tensor = parts[0] if isinstance(stored, str) else stored.join(parts)
        tensors[_numbered(theirs, numbers)] = np.ascontiguousarray(tensor)
    return tensors


Entry = tuple[str, tuple[tuple[str, str], ...]]
"""The name of an entry of a table, and the numbers of a layer and an expert."""


def _entries(parameters: Iterable[str], table: Table) -> dict[str, Entry]:
    """Return the first entry that contains each parameter, for the parameters that are in the table."""
    alike: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for theirs, ours in table.items():
        for name, _ in _as_parts(ours):
            alike.setdefault(_unnumbered(name), []).append((theirs, _pattern(name)))
    found: dict[str, Entry] = {}
    for parameter in parameters:
        for theirs, pattern in alike.get(_unnumbered(parameter), ()):
            if match := pattern.fullmatch(parameter):
                found[parameter] = theirs, tuple(match.groupdict().items())
                break
    return found


@functools.cache
def _unnumbered(name: str) -> str:
    """Return a name with 0 in place of each number and placeholder, so that a pattern equals the names it matches."""
    return re.sub(r"(\d|\{[ie]\})+", "0", name)


def _as_parts(ours: str | StoredTensor) -> tuple[Part, ...]:
    return ((ours, np.asarray),) if isinstance(ours, str) else ours.parts


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(i|e)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def _numbered(name: str, numbers: Mapping[str, str]) -> str:
    for key, number in numbers.items():
        name = name.replace(f"{{{key}}}", number)
    return name
