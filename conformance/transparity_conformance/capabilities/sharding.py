"""Placements: how a port's values on several ranks combine. The port declares placements; the checker verifies them.

A port on several ranks may have an attribute `placements`: a dict from names of taps, parameters or methods to
placements. `*` in a name matches any text. The table lists the placements:

| `replicated` | the same value on every rank (the default) |
| `partial` | the values of all ranks are summed |
| `sharded:-1` | the values are concatenated along the last axis |
| `rank:-1` | only the last rank has the value |

`padded:-1` after a placement means that the last axis ends with padding. A placement may also be a dict, such as
`{"sharded": 1, "indices": [[0, 2], [1, 3]]}`. The dict lists the indices that each rank has along the axis. If several
ranks list an index, they have replicas of the entry. The index −1 marks padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.formatting import count

PADDING = -1

WORDS = "expected replicated, partial, sharded:AXIS or rank:NUMBER, optionally followed by padded:AXIS"


@dataclass(frozen=True)
class Placement:
    kind: str = "replicated"
    """`replicated`, `partial`, `sharded` or `rank`."""
    number: int = 0
    """The axis along which the value is sharded, or the only rank that has the value."""
    padded: int | None = None
    """The axis that ends with padding; None without padding."""
    indices: tuple[tuple[int, ...], ...] | None = None
    """For each rank, the indices of its entries along the sharded axis; None if the ranks have consecutive entries."""

    def __str__(self) -> str:
        words = self.kind if self.kind in ("replicated", "partial") else f"{self.kind}:{self.number}"
        return words if self.padded is None else f"{words} padded:{self.padded}"


@dataclass(frozen=True)
class Joined:
    value: np.ndarray
    gap: float = 0.0
    rank: int = 0
    """The rank whose replica differs most from the replica of rank 0."""


@dataclass(frozen=True)
class Sharding:
    ranks: int = 1
    placements: Mapping[str, Placement] = field(default_factory=dict)

    def of(self, name: str) -> Placement:
        """Return the placement that the port declares for `name`, or for the first pattern that matches `name`;
        otherwise, `replicated`."""
        fitting = (placement for pattern, placement in self.placements.items() if fnmatchcase(name, pattern))
        return self.placements.get(name) or next(fitting, Placement())

    def is_sharded(self, name: str) -> bool:
        return self.of(name).kind == "sharded"


ALONE = Sharding()


def read_placements(declared: Any, ranks: int) -> dict[str, Placement]:
    if not isinstance(declared, Mapping):
        raise PortError(f"placements is {shown(declared)}; expected a dict of names and placements.")
    return {str(name): _read(str(name), value, ranks) for name, value in declared.items()}


def _read(name: str, value: Any, ranks: int) -> Placement:
    given = _words(value)
    kinds = [kind for kind in ("replicated", "partial", "sharded", "rank") if kind in given] or ["replicated"]
    kind, rows = kinds[0], given.get("indices")
    try:
        number = int(given[kind]) if kind in ("sharded", "rank") else 0
        padded = int(given["padded"]) if "padded" in given else None
        indices = None if rows is None else tuple(tuple(int(index) for index in row) for row in rows)
    except (TypeError, ValueError):
        given = {}
    is_plain = kind in ("sharded", "rank") or given.get(kind) in (None, True)
    is_known = len(kinds) == 1 and not given.keys() - {kind, "padded", "indices"}
    if not given or not is_plain or not is_known or (rows is not None and kind != "sharded"):
        raise PortError(f"The placement of {shown(name)} is {shown(value)}; {WORDS}.")
    if indices is not None and len(indices) != ranks:
        raise PortError(
            f"The placement of {shown(name)} has {count(len(indices), 'list')} of indices; expected {ranks}."
        )
    if kind == "rank":
        if not -ranks <= number < ranks:
            raise PortError(f"The placement of {shown(name)} is on rank {number}, but the number of ranks is {ranks}.")
        number %= ranks
    return Placement(kind, number, padded, indices)


def _words(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        words = [word.partition(":") for word in value.split()]
        return {word: number if colon else None for word, colon, number in words}
    return dict(value) if isinstance(value, Mapping) else {}


def join(name: str, values: Sequence[np.ndarray | None], placement: Placement, shape: Any = None) -> Joined:
    """Combine the values of all ranks into the value of the whole model; None stands for a rank that returned no value.
    If the expected `shape` is known, remove declared padding to obtain this shape. Raise `PortError` if the values
    contradict the declared placement."""
    if placement.kind == "rank":
        found = values[placement.number]
        if found is None:
            raise PortError(f"{name} is declared to be on rank {placement.number}, but this rank returned no value.")
        joined = Joined(found)
    else:
        whole = [value for value in values if value is not None]
        if len(whole) < len(values):
            absent = [str(rank) for rank, value in enumerate(values) if value is None]
            raise PortError(
                f"Rank{'s' * (len(absent) > 1)} {', '.join(absent)} of {len(values)} returned no {name}; return it on "
                f"all ranks, or declare the rank that returns it, such as placements = {{{name!r}: 'rank:-1'}}."
            )
        _check_shapes(name, whole, placement)
        joined = _joined(name, whole, placement)
    value = _unpadded(name, joined.value, placement, shape)
    _check_whole(name, value, placement, shape, len(values))
    return Joined(value, joined.gap, joined.rank)


def _check_shapes(name: str, values: Sequence[np.ndarray], placement: Placement) -> None:
    axis, first = placement.number if placement.kind == "sharded" else None, values[0]
    if axis is not None and not -first.ndim <= axis < first.ndim:
        raise PortError(f"{name} is declared sharded:{axis}, but its number of axes is {first.ndim}.")
    for rank, value in enumerate(values):
        ours, theirs = list(first.shape), list(value.shape)
        if axis is not None and len(ours) == len(theirs):
            ours[axis] = theirs[axis] = 0
        if ours != theirs:
            raise PortError(
                f"Ranks 0 and {rank} return {name} of the shapes {first.shape} and {value.shape}, but the placement is "
                f"{placement}; correct the shapes or the placement."
            )


def _joined(name: str, values: Sequence[np.ndarray], placement: Placement) -> Joined:
    if placement.kind == "partial":
        return Joined(np.sum(np.stack(values), axis=0, dtype=np.result_type(values[0], np.float32)))
    if placement.kind == "replicated":
        gaps = [gap(value, values[0]) for value in values]
        rank = int(np.argmax(gaps))
        return Joined(values[0], gaps[rank], rank)
    if placement.indices is None:
        return Joined(np.concatenate(values, axis=placement.number))
    return _by_index(name, values, placement, placement.indices)


def _by_index(
    name: str, values: Sequence[np.ndarray], placement: Placement, indices: tuple[tuple[int, ...], ...]
) -> Joined:
    entries: dict[int, np.ndarray] = {}
    worst, farthest = 0.0, 0
    for rank, (value, places) in enumerate(zip(values, indices, strict=True)):
        moved = np.moveaxis(value, placement.number, 0)
        if len(moved) != len(places):
            says = f"The number of entries of {name} on rank {rank} is {len(moved)}"
            raise PortError(f"{says}; expected {len(places)}, the number of declared indices.")
        for index, entry in zip(places, moved, strict=True):
            if index == PADDING:
                continue
            apart = gap(entry, entries.setdefault(index, entry))
            worst, farthest = (apart, rank) if apart > worst else (worst, farthest)
    if sorted(entries) != list(range(len(entries))):
        missing = min(set(range(max(entries) + 1)) - set(entries))
        raise PortError(
            f"No rank declares the index {missing} of {name}, but the declared indices go up to {max(entries)}."
        )
    whole = np.stack([entries[index] for index in range(len(entries))])
    return Joined(np.moveaxis(whole, 0, placement.number), worst, farthest)


def _unpadded(name: str, value: np.ndarray, placement: Placement, shape: Any) -> np.ndarray:
    axis = placement.padded
    if axis is None or shape is None or len(shape) != value.ndim or not -value.ndim <= axis < value.ndim:
        return value
    wide, narrow = value.shape[axis], shape[axis]
    if wide < narrow:
        raise PortError(
            f"{name} is declared padded:{axis}, but has {wide} entries on this axis; expected at least {narrow}."
        )
    return np.take(value, range(narrow), axis=axis)


def _check_whole(name: str, value: np.ndarray, placement: Placement, shape: Any, ranks: int) -> None:
    """Raise `PortError` if an undeclared placement or undeclared padding explains the size of the combined value."""
    if shape is None or len(shape) != value.ndim or value.shape == tuple(shape):
        return
    off = [axis for axis in range(value.ndim) if value.shape[axis] != shape[axis]]
    if len(off) != 1:
        return
    axis, has, expects = off[0], value.shape[off[0]], shape[off[0]]
    said = "-1" if axis == value.ndim - 1 else str(axis)
    if placement.kind == "replicated" and has < expects <= has * ranks:
        raise PortError(
            f"Each of {ranks} ranks returned {name} of the shape {value.shape}; expected {tuple(shape)}: if each rank "
            f"returns a shard, declare placements = {{{name!r}: 'sharded:{said}'}}."
        )
    if has > expects:
        raise PortError(
            f"{name} from {ranks} ranks has {has} entries on axis {said}; expected {expects}: if the last "
            f"{has - expects} are padding, declare placements = {{{name!r}: '{placement} padded:{said}'}}."
        )


def split(value: np.ndarray, placement: Placement, ranks: int) -> list[np.ndarray]:
    if placement.kind != "sharded":
        return [value] * ranks
    if placement.indices is None:
        return np.array_split(value, ranks, axis=placement.number)
    places = [[index for index in row if index != PADDING] for row in placement.indices]
    return [np.take(value, row, axis=placement.number) for row in places]
