"""The fields and parameters that are known so far during a fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


@dataclass
class FoundFields:
    fields: dict[str, Any] = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """Properties of the module that no configuration expresses."""
    used: set[str] = field(default_factory=set)
    """The names of the module's parameters that `parameters` contains in another form."""
    relative_distances: list[int] = field(default_factory=list)
    """Values of `relative_max_distance` that agree with all stacks."""

    def config(self, **others: Any) -> TransformerConfig:
        """Return the configuration with the known fields; `others` replaces some of them.

        Raises `FitError` if the fields contradict each other.
        """
        try:
            return TransformerConfig(**self.fields | others)
        except ConfigError as error:
            raise FitError(f"The recognized parts fit no configuration: {error}") from None

    def computed(self, inputs: Arrays, tap: str, **others: Any) -> np.ndarray:
        """Return an activation of the reference with the known fields; `others` replaces some of them."""
        probe = Probe("fit", tap, "", self.config(**others), self.parameters, inputs)
        return walk(probe, {}, until=tap)[tap]

    def take(self, fields: Mapping[str, Any]) -> None:
        self.fields |= fields
        for name in fields:
            self.untold.pop(name, None)

    def put(self, name: str, linear: Linear, *, bias: bool) -> None:
        """Add the parameters of a linear map. If `bias` is set and the map has no bias, add zeros."""
        self.parameters[f"{name}.weight"] = linear.weight
        if bias:
            self.parameters[f"{name}.bias"] = np.zeros(len(linear.weight)) if linear.bias is None else linear.bias
