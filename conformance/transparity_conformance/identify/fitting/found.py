"""What is known of a configuration while it is being fitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.oracle.oracle import Arrays


@dataclass
class FoundFields:
    """What is known of a configuration so far."""

    fields: dict[str, Any] = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """What the module does that no configuration does."""
    used: set[str] = field(default_factory=set)
    """The module's own names of parameters that are ours in another form."""
    relative_distances: list[int] = field(default_factory=list)
    """The largest distances of relative positions that all stacks allow."""

    def config(self, **others: Any) -> TransformerConfig:
        """The configuration, with `others` in place of some fields; raises `FitError` if they do not fit together."""
        try:
            return TransformerConfig(**self.fields | others)
        except ConfigError as error:
            raise FitError(f"What was found fits no configuration: {error}") from None

    def put(self, name: str, linear: Linear, *, bias: bool) -> None:
        """Keep the parameters of a linear map; a bias that only others of its kind have is 0."""
        self.parameters[f"{name}.weight"] = linear.weight
        if bias:
            self.parameters[f"{name}.bias"] = np.zeros(len(linear.weight)) if linear.bias is None else linear.bias
