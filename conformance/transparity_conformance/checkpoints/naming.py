"""Tables that map the tensors of Hugging Face files to the parameters of the reference."""

import functools
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]

Part = tuple[str, Convert]
"""(name of a parameter, function that computes the parameter from a tensor)."""

Join = Callable[[Sequence[np.ndarray]], np.ndarray]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that contains one or more parameters in another form, such as a transposed or fused matrix."""

    parts: tuple[Part, ...]
    join: Join
    """A function that combines the parameters into the tensor: the inverse of `parts`."""


Table = Mapping[str, str | StoredTensor]
"""Maps names of tensors to parameters. In names, `{i}` stands for the number of a layer, and `{e}` for the number of an
expert. If two names map to one parameter, their tensors must be equal; written files have the first name.
"""


def transposed(name: str) -> StoredTensor:
    """Return the table entry for a matrix that the file stores as (in, out)."""
    return StoredTensor(((name, np.transpose),), lambda parts: np.transpose(parts[0]))


def flat(name: str) -> StoredTensor:
    """Return the table entry for a vector that the file stores as a matrix with one row."""
    return StoredTensor(((name, np.ravel),), lambda parts: parts[0][np.newaxis])


def stacked(rows: Mapping[str, int]) -> StoredTensor:
    """Return the entry for parameters that the file stacks along the first axis; `rows` maps each parameter to its row
    count."""
    return by_group(rows, 1)


def by_group(rows: Mapping[str, int], groups: int) -> StoredTensor:
    """Return the entry for parameters that the file interleaves by group; `rows` maps each parameter to its row count
    per group."""
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
    """Return the table entries for linear layers that the file stores as one module; see `by_group`.

    `theirs` is the module in the file, and `leaves` are its tensors. `rows` maps each linear layer to its number of
    rows. `ours` is a prefix of the reference's names.
    """
    here = f"{ours}." if ours else ""
    return {
        f"{theirs}.{leaf}": by_group({f"{here}{name}.{leaf}": count for name, count in rows.items()}, groups)
        for leaf in leaves
    }


def parts_of(names: Iterable[str], table: Table, prefixes: Sequence[str]) -> dict[str, tuple[Part, ...]]:
    """Return the parameters that each tensor in `names` contains, for the tensors that `table` has."""
    bare = {name: without_prefix(name, prefixes) for name in names}
    matched = _matches(bare.values(), table)
    found = {}
    for name, (theirs, numbers) in ((name, matched[own]) for name, own in bare.items() if own in matched):
        found[name] = tuple((_numbered(ours, numbers), make) for ours, make in _as_parts(table[theirs]))
    return found


def without_prefix(name: str, prefixes: Sequence[str]) -> str:
    """Remove the prefix that a model with a head adds to the names of tensors outside the head."""
    return next((name.removeprefix(prefix) for prefix in prefixes if name.startswith(prefix)), name)


def is_any_of(name: str, patterns: Collection[str], prefixes: Sequence[str]) -> bool:
    return bool(_matches([without_prefix(name, prefixes)], patterns))


def called(parameter: str, table: Table) -> str:
    return next((_numbered(*found) for found in _entries([parameter], table).values()), parameter)


def tensors_of(parameters: Mapping[str, np.ndarray], table: Table) -> dict[str, np.ndarray]:
    """Convert parameters to tensors without prefixes in their names; the inverse of `parts_of`. If a parameter has
    several tensors in the table, use the first. Tensors keep the dtype. Leave out parameters outside the table."""
    tensors = {}
    for theirs, numbers in dict.fromkeys(_entries(parameters, table).values()):
        stored = table[theirs]
        names = [_numbered(ours, numbers) for ours, _ in _as_parts(stored)]
        if any(name not in parameters for name in names):
            continue
        parts = [parameters[name] for name in names]
        tensor = parts[0] if isinstance(stored, str) else stored.join(parts)
        tensors[_numbered(theirs, numbers)] = np.ascontiguousarray(tensor)
    return tensors


Match = tuple[str, tuple[tuple[str, str], ...]]
"""(pattern, pairs of a placeholder and the number that replaces it)."""


def _entries(parameters: Iterable[str], table: Table) -> dict[str, Match]:
    tensors: dict[str, str] = {}
    for theirs, stored in table.items():
        for ours, _ in _as_parts(stored):
            tensors.setdefault(ours, theirs)
    return {name: (tensors[ours], numbers) for name, (ours, numbers) in _matches(parameters, tensors).items()}


def _matches(names: Iterable[str], patterns: Iterable[str]) -> dict[str, Match]:
    alike: dict[str, list[str]] = {}
    for pattern in patterns:
        alike.setdefault(_unnumbered(pattern), []).append(pattern)
    found: dict[str, Match] = {}
    for name in names:
        for pattern in alike.get(_unnumbered(name), ()):
            if match := _pattern(pattern).fullmatch(name):
                found.setdefault(name, (pattern, tuple(match.groupdict().items())))
    return found


@functools.cache
def _unnumbered(name: str) -> str:
    return re.sub(r"(\d|\{[ie]\})+", "0", name)


def _as_parts(ours: str | StoredTensor) -> tuple[Part, ...]:
    return ((ours, np.asarray),) if isinstance(ours, str) else ours.parts


@functools.cache
def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(i|e)\\\}", r"(?P<\1>\\d+)", re.escape(name)))


def _numbered(name: str, numbers: Iterable[tuple[str, str]]) -> str:
    for key, number in numbers:
        name = name.replace(f"{{{key}}}", number)
    return name
