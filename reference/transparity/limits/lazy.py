"""Arrays that are not in memory: mappings that recompute an array each time it is read, and matrices in blocks."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping

import numpy as np


class Lazy(Mapping[str, np.ndarray]):
    """Arrays by name that are recomputed each time they are read."""

    def __init__(self, names: Collection[str], make: Callable[[str], np.ndarray]) -> None:
        self.places: dict[str, Callable[[], np.ndarray]] = {name: functools.partial(make, name) for name in names}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.places[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: object) -> bool:
        return name in self.places


class InBlocks(ABC):
    """A matrix that is not in memory as a whole."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield blocks of rows, each with the slice of its rows."""
