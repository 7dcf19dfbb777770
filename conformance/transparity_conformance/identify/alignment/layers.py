"""Taps of one layer found where the same code computes them in another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.identify.alignment.flow import Flow
from transparity_conformance.identify.alignment.values.candidates import Match, PortValues

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.*)")


class OfLayer(NamedTuple):
    """A tap of a layer."""

    stack: str
    layer: int
    name: str

    @property
    def tap(self) -> str:
        return f"{self.stack}.layers.{self.layer}.{self.name}"


def repeated(
    config: TransformerConfig, candidates: PortValues, found: Mapping[str, Match], lost: str, flow: Flow
) -> Match | None:
    """The `lost` tap as another layer of its stack computes it; None if no code is run for every layer."""
    at = _of_layer(lost)
    if at is None:
        return None
    layers = config.num_encoder_layers if at.stack == "encoder" else config.num_decoder_layers
    period = _period(candidates, _of_stack(found, at.stack), layers)
    for other in range(layers):
        known = found.get(at._replace(layer=other).tap)
        if known is None or not period:
            continue
        index = known.index + (at.layer - other) * period
        if not 0 <= index < len(candidates.keys):
            continue
        is_alike = candidates.keys[index] == candidates.keys[known.index]
        has_shape = candidates.values[index].shape == candidates.values[known.index].shape
        if is_alike and has_shape and flow.admits(lost, index, candidates, found):
            return Match(index, known.layout)
    return None


def _of_layer(tap: str) -> OfLayer | None:
    named = LAYER.fullmatch(tap)
    return OfLayer(named[1], int(named[2]), named[3]) if named else None


def _of_stack(found: Mapping[str, Match], stack: str) -> dict[OfLayer, int]:
    named = {_of_layer(tap): match.index for tap, match in found.items()}
    return {at: index for at, index in named.items() if at is not None and at.stack == stack}


def _period(candidates: PortValues, found: Mapping[OfLayer, int], layers: int) -> int:
    """The number of operations of one layer, if the operations of all layers repeat those of the first; else 0."""
    if layers < 2 or not found:
        return 0
    first, last = min(found.values()), max(found.values())
    spans = [[index for at, index in found.items() if at.layer == layer] for layer in {at.layer for at in found}]
    longest = max(max(span) - min(span) for span in spans)
    for period, begin, end in _repetitions(candidates.keys, layers):
        if period <= longest:
            break
        apart = (found[at] - found[other] - (at.layer - other.layer) * period for at, other in _pairs(found))
        if begin <= first and last < end and not any(apart):
            return period
    return 0


def _pairs(found: Mapping[OfLayer, int]) -> Iterator[tuple[OfLayer, OfLayer]]:
    """The places of the same tap in two layers."""
    for at in found:
        yield from ((at, other) for other in found if other.name == at.name and other.layer < at.layer)


def _repetitions(keys: Sequence[object], times: int) -> Iterator[tuple[int, int, int]]:
    """Every part of a sequence that is `times` the same, as (the length of one, begin, end), the longest first."""
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids = np.array([numbers[key] for key in keys])
    for period in range(len(ids) // times, 0, -1):
        same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
        begins, ends = np.flatnonzero(same[1:] & ~same[:-1]), np.flatnonzero(same[:-1] & ~same[1:])
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
            if end - begin >= (times - 1) * period:
                yield period, begin, end + period
