"""The tensors of a port that may be parameters: single tensors, several stacked by number, or one layer of a stack."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.running.adapters.notation import (
    ABSENT,
    NUMBER,
    Selection,
    Shapes,
    select,
    sizes_of,
    stacked,
)


class Pool:
    """The tensors of a port, with a mark on each number that is already matched."""

    def __init__(self, tensors: Mapping[str, np.ndarray], config: TransformerConfig) -> None:
        self.tensors, self.sizes = tensors, sizes_of(config)
        self.shapes = {name: value.shape for name, value in tensors.items()}
        self.taken = {name: np.zeros(value.size, bool) for name, value in tensors.items()}
        self.counts = {config.num_heads, config.key_value_heads} - {1}
        self._selected: dict[str, Selection] = {}

    def selection(self, text: str) -> Selection:
        if text not in self._selected:
            self._selected[text] = select(text, self.shapes, self.sizes)
        return self._selected[text]

    def numbers(self, text: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the numbers that a line of the adapter selects, in float64 and in the shape of the parameter."""
        if text == ABSENT:
            return np.zeros(shape)
        return self.selection(text).read(self.tensors).reshape(shape).astype(np.float64)

    def flags(self, text: str) -> np.ndarray:
        """Return, for each number that a line selects, whether it is already matched."""
        return np.zeros(0, bool) if text == ABSENT else self.selection(text).read(self.taken)

    def take(self, text: str) -> None:
        """Mark the numbers of a line as matched."""
        if text == ABSENT:
            return
        chosen = self.selection(text)
        marks = np.concatenate([self.taken[name] for name in chosen.names])
        marks[slice(None) if chosen.index is None else chosen.index] = True
        sizes = np.cumsum([self.taken[name].size for name in chosen.names])[:-1]
        for name, part in zip(chosen.names, np.split(marks, sizes), strict=True):
            self.taken[name] = part

    def overlap(self, texts: Iterable[str]) -> bool:
        """Return whether two of the lines share a number, or any number is already matched."""
        before = dict(self.taken)
        try:
            for text in texts:
                if self.flags(text).any():
                    return True
                self.take(text)
            return False
        finally:
            self.taken = before

    def free(self, layer: int | None, layers: int, stack: str) -> Iterator[Shapes]:
        """Yield the tensors with unmatched numbers in growing groups, the most likely group first.

        Args:
            layer, layers: the layer's number, or None outside the layers; and the number of layers.
            stack: `encoder` or `decoder`.

        In the first group, the first number in each name is the layer's, and no name contains the other stack. In the
        second group, each name contains the layer's number anywhere. The last group has all tensors.
        """
        left = {name: shape for name, shape in self.shapes.items() if not self.taken[name].all()}
        wanted = [int(layer)] if layer is not None else []
        first = [name for name in left if _numbers(name)[:1] == wanted and not _is_of_other(name, stack)]
        near = [name for name in left if set(wanted) <= set(_numbers(name))]
        for names in dict.fromkeys(map(tuple, (first, near, left))):
            yield self._with_stacks({name: left[name] for name in names}, layer, layers)

    def _with_stacks(self, shapes: Shapes, layer: int | None, layers: int) -> Shapes:
        found = dict(shapes)
        for name in shapes:
            for match in NUMBER.finditer(name):
                several = f"{name[: match.start()]}{{n}}{name[match.end() :]}"
                if several not in found and len(names := stacked(several, self.shapes)) in self.counts:
                    found[several] = (len(names), *self.shapes[names[0]])
        for name, shape in self.shapes.items():
            if layer is not None and len(shape) > 1 and shape[0] == layers and not NUMBER.search(name):
                found[f"{name}[{layer}]"] = shape[1:]
        return found


def _numbers(name: str) -> list[int]:
    return [int(each) for each in NUMBER.findall(name)]


def _is_of_other(name: str, stack: str) -> bool:
    """Return whether a name contains the name of the other stack before its first number."""
    before = NUMBER.split(name)[0].lower()
    own, other = ("enc", "dec") if stack == "encoder" else ("dec", "enc")
    return other in before and own not in before
