"""Faults of the temperature of queries, a factor that grows with their positions: missing, or of others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.attention import attended
from transparity_conformance.catalogue.fault import Fault
from transparity_conformance.oracle.masks import own_config, split
from transparity_numpy.positions import query_temperature

Factor = Callable[[TransformerConfig, TransformerConfig, np.ndarray, Callable[..., Any]], Any]
"""The factor of queries: from the configuration of the layer and of the model, the positions, and the right factor as a
function of them."""


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap != "scores" or sublayer != "self_attention":
        return
    own = own_config(config, site)
    for name, (factor, says) in WRONG.items() if own.query_temperature else ():
        first = own.query_temperature_first
        yield _tempered("query-temperature", name, says.format(first=first, other=1 - first), factor)
    temperatures = {kind: each.query_temperature for kind, each in config.layer_kinds.items()}
    for kind, other in temperatures.items():
        if other != own.query_temperature:
            says = f"the queries of this layer have the temperature of the layers of {kind}: {other:g}"
            yield _tempered("query-temperature-layers", kind, says, _of_layers(kind))
    if len(set(temperatures.values())) == 2:
        says = "layers with and without a temperature of queries are exchanged"
        yield _tempered("query-temperature-layers", "exchanged", says, _exchanged)


def _tempered(identity: str, variant: str, description: str, factor: Factor) -> Fault:
    return Fault(identity, variant, description, formula=attended, settings={"temperature": factor})


def _other_first(own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any) -> Any:
    return right(positions=positions + 1 - 2 * own.query_temperature_first)


def _smooth(own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any) -> Any:
    pieces = (positions + own.query_temperature_first) / own.query_temperature_length
    return (1 + own.query_temperature * np.log1p(pieces))[:, None, :, None]


WRONG: dict[str, tuple[Factor, str]] = {
    "missing": (lambda own, config, positions, right: None, "queries are not multiplied by their temperature"),
    "twice": (
        lambda own, config, positions, right: right(positions=positions) ** 2,
        "queries are multiplied by their temperature twice, or keys are, too",
    ),
    "first": (_other_first, "positions in the temperature of queries begin with {other}, not with {first}"),
    "not cut": (_smooth, "the temperature of queries grows with every position: the quotient is not rounded down"),
    "first piece": (
        lambda own, config, positions, right: right(positions=positions + own.query_temperature_length),
        "the temperature of queries is already above 1 in the first piece: 1 is added twice in the logarithm",
    ),
}


def _of_layers(kind: str) -> Factor:
    """The temperature of another kind of layer."""
    return lambda own, config, positions, right: _with(own, config.layer_kinds[kind].query_temperature, positions)


def _exchanged(own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any) -> Any:
    others = {each.query_temperature for each in config.layer_kinds.values()} - {own.query_temperature}
    return _with(own, max(others), positions)


def _with(own: TransformerConfig, temperature: float, positions: np.ndarray) -> Any:
    return query_temperature(dataclasses.replace(own, query_temperature=temperature), positions, np.float64)
