"""Choose the layers that a small model keeps: two of each kind."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from transparity_conformance.against.small.fields import (
    Fields,
    are_names,
    are_places,
    is_list,
    is_size,
    is_whole,
    mapped,
    of_kind,
)

PREFIX, LONGEST = 6, 16
"""`PREFIX`: up to this number, the first layers are kept. `LONGEST`: the largest number of kept layers."""

KINDS = ("layers", "depths", "first", "last", "place", "places")
"""Kinds of fields about layers. `depths` may list the number of layers in each stage; then all stages are kept."""


class Layers:
    """The layers that a small configuration keeps.

    Attributes:
        picks: for each number of layers in the configuration, the indices of the layers that are kept.
    """

    def __init__(self, fields: Fields, special: Mapping[int, Any]) -> None:
        self.fields, self.special = fields, special
        stages = {len(value) for value in of_kind(fields, "depths").values() if is_list(value)}
        lists = [len(value) for name, (_, value) in fields.items() if "layer" in name and are_names(value)]
        counts = [*of_kind(fields, "layers").values(), *of_kind(fields, "depths").values(), *lists]
        self.picks: dict[int, list[int]] = {
            each: picked(self._kinds(each)) for each in counts if is_size(each) and each not in stages
        }
        self.count = next(iter(self.picks), 0)
        self.kept = self.picks.get(self.count, [])

    def has_one_for_each(self, kind: str, value: Any) -> bool:
        """Return whether a field's value is a list with one item for each layer."""
        return is_list(value) and len(value) > 2 and len(value) in self.picks and not self._are_places(kind, value)

    def cut(self, value: Any) -> Any:
        """Return the items of the kept layers."""
        return type(value)(value[old] for old in self.picks[len(value)])

    def new(self, kind: str, value: Any) -> Any:
        """Return the value of a field about layers in the small configuration."""
        if self.kept and self._are_places(kind, value):
            return type(value)(new for new, old in enumerate(self.kept) if old in value)
        if is_list(value):
            return mapped(value, lambda each: min(each, 2)) if kind == "depths" else value
        if not is_whole(value) or not self.kept:
            return value
        if kind in ("layers", "depths"):
            return len(self.picks[value]) if value in self.picks else value
        if kind == "place":
            return min(max(value, -len(self.kept)), len(self.kept) - 1)
        return sum(old < value if kind == "first" else old >= self.count - value for old in self.kept)

    def _are_places(self, kind: str, value: Any) -> bool:
        """Return whether a list contains indices of layers, rather than 0 or 1 for each layer."""
        return kind in ("layers", "places") and are_places(value) and (len(value) not in self.picks or max(value) > 1)

    def _kinds(self, count: int) -> list[tuple[Any, ...]]:
        """Return all properties that the configuration states about each of `count` layers."""
        numbers = range(count)
        rows: list[list[Any]] = [[str(self.special.get(number)) for number in numbers]]
        for name, (kind, value) in self.fields.items():
            if kind in ("layers", "places") and are_places(value) and max(value) > 1:
                rows.append([number in value for number in numbers])
            elif is_list(value) and len(value) == count and len({str(each) for each in value}) <= 4:
                rows.append([str(each) for each in value])
            elif kind == "first" and is_size(value):
                rows.append([number < value for number in numbers])
            elif kind == "last" and is_size(value):
                rows.append([number >= count - value for number in numbers])
            elif kind == "period" and is_size(value) and not self._is_listed(name):
                rows.append([number % value for number in numbers])
        return list(zip(*rows, strict=True))

    def _is_listed(self, name: str) -> bool:
        """Return whether the configuration also lists each layer's kind, so that a period of attention adds nothing."""
        return "layer_types" in self.fields and re.search("att|window", name) is not None


def picked(kinds: list[tuple[Any, ...]]) -> list[int]:
    """Return the first layers if they contain each kind twice, otherwise two layers of each kind.

    If a kind has only one layer, this layer is repeated.
    """
    for length in range(2, min(len(kinds), PREFIX) + 1):
        found = Counter(kinds[:length])
        if all(found[kind] > 1 for kind in kinds):
            return list(range(length))
    if len(kinds) <= 2:
        return list(range(len(kinds)))
    places = {kind: [number for number, each in enumerate(kinds) if each == kind] for kind in kinds}
    return sorted(number for each in places.values() for number in (each * 2)[:2])[:LONGEST]
