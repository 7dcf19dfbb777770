"""A reference that is called in another way, and is recorded and edited like a forward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import nn

from transparity_conformance.against.reference import Inputs, Reference

Way = Callable[[Any, dict[str, Any]], Any]
"""A function that calls a model with tensors by name and returns the answer."""


class _Called(nn.Module):
    """A module whose `forward` calls another module in some way. It has the other module's tensors and names."""

    def __init__(self, model: nn.Module, way: Way) -> None:
        super().__init__()
        vars(self).update(model=model, way=way)

    def forward(self, **inputs: Any) -> Any:
        return self.way(self.model, inputs)

    def named_modules(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Module]]:
        return self.model.named_modules(*args, **named)

    def named_parameters(self, *args: Any, **named: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters(*args, **named)

    def named_buffers(self, *args: Any, **named: Any) -> Iterator[tuple[str, Any]]:
        return self.model.named_buffers(*args, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["model"], name)


class InWay(Reference):
    """A reference that is called in another way. It shares the tensors of the original reference."""

    def __init__(self, reference: Reference, way: Way) -> None:
        super().__init__(reference.name, _Called(reference.model, way), reference.dtype)
        self.base, self.way = reference, way
        self._known: dict[int, tuple[Inputs, tuple[np.ndarray, float]]] = {}

    def near(self, inputs: Inputs) -> tuple[np.ndarray, float]:
        if id(inputs) not in self._known:
            self._known[id(inputs)] = inputs, super().near(inputs)
        return self._known[id(inputs)][1]

    @functools.cached_property
    def exact(self) -> Any:
        return _Called(self.base.exact, self.way)

    @functools.cached_property
    def rounded(self) -> Any:
        return _Called(self.base.rounded, self.way)

    @functools.cached_property
    def neighbours(self) -> list[tuple[Any, Any]]:
        return [(_Called(point, self.way), _Called(rounded, self.way)) for point, rounded in self.base.neighbours]
