"""Classify the size fields of `transformers` configurations, and choose the layers of a small model."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TABLES = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
KINDS: dict[str, str] = {kind: "|".join(patterns) for kind, patterns in TABLES["kinds"].items()}
MOST: dict[str, int] = TABLES["most"]

Fields = dict[str, tuple[str, Any]]
"""The kind and the value of each field."""


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "")


def fields_of(values: dict[str, Any]) -> Fields:
    return {name: (kind_of(name), value) for name, value in values.items() if is_whole(value) or is_list(value)}


def of_kind(fields: Fields, kind: str) -> dict[str, Any]:
    return {name: value for name, (each, value) in fields.items() if each == kind}


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_size(value: Any) -> bool:
    return is_whole(value) and value > 0


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def are_names(value: Any) -> bool:
    return is_list(value) and len(value) > 0 and all(isinstance(each, str) for each in value)


def are_places(value: Any) -> bool:
    if not is_list(value) or not value or not all(is_whole(each) and each >= 0 for each in value):
        return False
    return all(first < second for first, second in itertools.pairwise(value))


def sizes(value: Any) -> list[int]:
    if is_list(value):
        return [number for each in value for number in sizes(each)]
    return [value] if is_size(value) else []


def mapped(value: Any, function: Callable[[int], int]) -> Any:
    if is_list(value):
        return type(value)(mapped(each, function) for each in value)
    return function(value) if is_size(value) else value


PREFIX, LONGEST = 6, 16
"""The largest number of layers in a small model: `PREFIX` if the first layers contain two layers of each kind,
otherwise `LONGEST`."""

OF_LAYERS = ("layers", "depths", "period", "first", "last", "place", "places")
"""The kinds of fields that count, list or locate layers; `depths` may count the layers of each stage."""


class Layers:
    """The layers that a small configuration keeps. `picks` maps each number of layers to the indices of kept layers."""

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
        return is_list(value) and len(value) > 2 and len(value) in self.picks and not self._are_places(kind, value)

    def cut(self, value: Any) -> Any:
        return type(value)(value[old] for old in self.picks[len(value)])

    def new(self, kind: str, value: Any) -> Any:
        if self.kept and self._are_places(kind, value):
            return type(value)(new for new, old in enumerate(self.kept) if old in value)
        if is_list(value):
            return mapped(value, lambda each: min(each, 2)) if kind == "depths" else value
        if not is_whole(value) or not self.kept:
            return value
        if kind == "period":
            return shorter(value)
        if kind in ("layers", "depths"):
            return len(self.picks[value]) if value in self.picks else value
        if kind == "place":
            return min(max(value, -len(self.kept)), len(self.kept) - 1)
        return sum(old < value if kind == "first" else old >= self.count - value for old in self.kept)

    def _are_places(self, kind: str, value: Any) -> bool:
        """Return whether a list contains indices of layers, rather than a flag (0 or 1) for each layer."""
        return kind in ("layers", "places") and are_places(value) and (len(value) not in self.picks or max(value) > 1)

    def _kinds(self, count: int) -> list[tuple[Any, ...]]:
        numbers = range(count)
        rows: list[list[Any]] = [[str(self.special.get(number)) for number in numbers]]
        for name, (kind, value) in self.fields.items():
            if kind in ("layers", "places") and are_places(value) and (max(value) > 1 or len(value) < count):
                rows.append([number in value for number in numbers])
            elif is_list(value) and len(value) == count and len({str(each) for each in value}) <= 4:
                rows.append([str(each) for each in value])
            elif self.is_pattern(name, value, count):
                rows.append([value[number % len(value)] for number in numbers])
            elif kind == "first" and is_size(value):
                rows.append([number < value for number in numbers])
            elif kind == "last" and is_size(value):
                rows.append([number >= count - value for number in numbers])
            elif kind == "period" and is_size(value) and not self._is_listed(name, value, count):
                rows.append([number % shorter(value) for number in numbers])
        return list(zip(*rows, strict=True))

    def is_pattern(self, name: str, value: Any, count: int) -> bool:
        """Return whether a list has the kinds of the first layers, and repeats for the other of the `count` layers."""
        is_of_layers = are_names(value) and re.search("layer|block", name) is not None
        return is_of_layers and len({*value}) > 1 and len(value) < count

    def _is_listed(self, name: str, period: int, count: int) -> bool:
        if "layer_types" in self.fields and re.search("att|window", name):
            return True
        lists = [list(value) for _, value in self.fields.values() if is_list(value) and len(value) == count]
        return period < count and any(each[period:] == each[:-period] and len({*map(str, each)}) > 1 for each in lists)


LONGEST_PERIOD = 4
"""The checker halves a larger period of layers as long as the period is even, so that 8 layers contain each kind
twice."""


def shorter(period: int) -> int:
    while period > LONGEST_PERIOD and period % 2 == 0:
        period //= 2
    return period


def picked(kinds: list[tuple[Any, ...]]) -> list[int]:
    """Return the indices of two layers of each kind, at most `LONGEST`. If the first `PREFIX` layers contain two layers
    of each kind, use only these layers. If a kind has only one layer, repeat its index, except in models of one or two
    layers."""
    for length in range(2, min(len(kinds), PREFIX) + 1):
        found = Counter(kinds[:length])
        if all(found[kind] > 1 for kind in kinds):
            return list(range(length))
    if len(kinds) <= 2:
        return list(range(len(kinds)))
    places = {kind: [number for number, each in enumerate(kinds) if each == kind] for kind in kinds}
    return sorted(number for each in places.values() for number in (each * 2)[:2])[:LONGEST]
