"""What stands in the place of parameters that a port has not read, found by putting it into the reference."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

import numpy as np

from transparity_conformance.checking.audit.probing import AuditProbe
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.report.comparison import gap, share

Source = Callable[[Arrays, str], np.ndarray | None]
"""The numbers that stand in the place of a parameter; None if there are none for it."""

_LAYER = re.compile(r"\.layers\.\d+\.")


def stand_in(probe: AuditProbe, names: Collection[str], logits: np.ndarray, dtype: str) -> tuple[str, float] | None:
    """What a port that answers `logits` has in place of the parameters `names`, and the difference that this leaves."""
    budget = probe.budget(dtype)
    for says, source in _sources(probe.parameters, names):
        replaced = {name: source(probe.parameters, name) for name in names}
        if any(value is None for value in replaced.values()):
            continue
        parameters = {**probe.parameters, **{name: value for name, value in replaced.items() if value is not None}}
        expected = logits_with(probe.config, parameters, probe.inputs)
        if expected is not None and share(left := gap(logits, expected), budget) <= 1:
            return says, left
    return None


def _sources(parameters: Arrays, names: Collection[str]) -> Iterator[tuple[str, Source]]:
    yield "zeros", lambda given, name: np.zeros_like(given[name])
    yield "ones", lambda given, name: np.ones_like(given[name])
    layers = sorted({found[0] for name in parameters if (found := _LAYER.search(name))})
    for layer in layers:
        yield f"those of {layer.strip('.')}", _of_layer(layer)
    first = next(iter(names))
    if len(names) == 1:
        for other in parameters:
            if other != first and parameters[other].shape == parameters[first].shape:
                yield f"{other}, which is read twice", _of(other)
            if parameters[other].shape[::-1] == parameters[first].shape and parameters[other].ndim == 2:
                yield f"{other} transposed, which is read twice", _of_transposed(other)


def _of_layer(layer: str) -> Source:
    return lambda given, name: given.get(_LAYER.sub(layer, name)) if _LAYER.search(name) else None


def _of(other: str) -> Source:
    return lambda given, name: given[other]


def _of_transposed(other: str) -> Source:
    return lambda given, name: given[other].T
