"""The protocol of a framework's modules, and the frameworks by the class of a module."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.running.loader.inputs import is_instance


@dataclass(frozen=True)
class Tensor:
    """A tensor, as NumPy reads and writes it."""

    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


class Kind(Protocol):
    """The modules of a framework."""

    def forward_of(self, model: Any, config: TransformerConfig) -> Callable[..., Any]:
        """The forward pass `forward(**inputs)` of NumPy arrays, as the framework's users call a module."""

    def tensors_of(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that are learned, by their path in the module."""


CLASSES = (("keras", "Layer", "keras"), ("equinox", "Module", "equinox"))
"""Package and class of modules, and the file here that is their `Kind`. Keras is first: on PyTorch, a layer is a
`torch.nn.Module`, too."""


def kind_of(model: Any) -> Kind | None:
    """The kind of a module; None if it is called with arrays in batches, like any function."""
    name = next((file for package, kind, file in CLASSES if is_instance(model, package, kind)), None)
    return None if name is None else cast(Kind, importlib.import_module(f"{__package__}.{name}"))


def of_build(made: Any, config: TransformerConfig) -> Any:
    """The forward pass of what `build(config, parameters)` returned: a module of a kind here is called as its own."""
    kind = kind_of(made)
    return made if kind is None else kind.forward_of(made, config)
