"""The fields and parameters that are known so far during a fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity.parameters import parameter_shapes
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.fitting.subject import FitError, RecordedCall
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.numbers import DIGITS, digits, is_same, settle
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe

FEW = 3
"""A report names an equivalent pair (scale, multiplier) only if the multiplier has at most this many digits."""


@dataclass
class FoundFields:
    fields: dict[str, Any] = field(default_factory=dict)
    parameters: Arrays = field(default_factory=dict)
    untold: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    """Properties of the module that no configuration expresses."""
    used: set[str] = field(default_factory=set)
    """The module's parameters that `parameters` contains in another form."""
    positions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The fields of each attention's positions, if layers differ in them."""
    relative_distances: list[int] = field(default_factory=list)
    """Values of `relative_max_distance` that fit all stacks."""

    def config(self, **others: Any) -> TransformerConfig:
        """Return the known fields, updated by `others`. Raise `FitError` for contradictions."""
        try:
            return TransformerConfig(**self.fields | others)
        except ConfigError as error:
            raise FitError(f"The recognized parts fit no configuration: {error}") from None

    def read_names(self, *fields: str) -> None:
        """Determine fields that only decide which parameters exist. The reference must have all parameters that were
        found, and as few others as possible. List a field after the fields on which its effect depends."""
        for name in fields:
            default = bool(TransformerConfig.__dataclass_fields__[name].default)
            ways: dict[bool, tuple[int, int]] = {}
            for value in (default, not default):
                with contextlib.suppress(ConfigError):
                    shapes = parameter_shapes(TransformerConfig(**self.fields | {name: value}))
                    ways[value] = len(self.parameters.keys() - shapes.keys()), len(shapes)
            if ways:
                self.fields[name] = min(ways, key=lambda value: ways[value])

    def fill_biases(self) -> None:
        """Add biases of 0 if only some maps or norms of the module have a bias."""
        for name, shape in parameter_shapes(self.config()).items():
            if name.endswith("bias"):
                self.parameters.setdefault(name, np.zeros(shape))

    def computed(self, inputs: Arrays, tap: str, **others: Any) -> np.ndarray:
        return walk(Probe("fit", tap, "", self.config(**others), self.parameters, inputs), {}, until=tap)[tap]

    def computes(self, calls: Sequence[RecordedCall], **others: Any) -> bool:
        return all(is_same(self.computed(call.inputs, "logits", **others), call.output) for call in calls)

    def choose(self, options: Iterable[Mapping[str, Any]], is_right: Callable[[Mapping[str, Any]], bool]) -> None:
        """Take the first of the options that is right, if any."""
        for fields in options:
            if is_right(fields):
                self.fields |= fields
                self.untold = {name: why for name, why in self.untold.items() if name not in fields}
                return

    def put_factor(
        self, name: str, factor: float, bases: Mapping[str, float], error: Callable[[float], float] | None = None
    ) -> None:
        """Add the fields `{name}_scale` and `{name}_multiplier` whose product is `factor`, with the simplest possible
        multiplier. `bases` maps each scale to its factor."""
        options = []
        for index, (scale, base) in enumerate(bases.items()):

            def wrong(multiplier: float, base: float = base) -> float:
                return error(multiplier * base) if error else abs(multiplier * base / factor - 1)

            under_root = max(1, round((factor / base) ** -2))  # Gemma's query_pre_attn_scalar n means 1 / √n
            root = under_root**-0.5
            multiplier = settle(factor / base, wrong, (1.0, root), "float64" if error else "float32")
            length = min(digits(multiplier), 1 + digits(under_root) if multiplier == root else DIGITS)
            options.append((multiplier != 1, length, index, scale, multiplier))
        *_, scale, multiplier = min(options)
        self.fields |= {f"{name}_scale": scale, f"{name}_multiplier": multiplier}
        same = [f'"{each}" with the multiplier {m:g}' for *_, each, m in options if each != scale and digits(m) <= FEW]
        if same and factor != 1:
            self.untold[f"{name}_scale"] = f"{' or '.join(same)} has the same effect"
            self.untold[f"{name}_multiplier"] = f"the value depends on {name}_scale"

    def put(self, name: str, linear: Linear) -> None:
        self.parameters[f"{name}.weight"] = linear.weight
        self.used.add(linear.name.split("[")[0])
        if linear.bias is not None:
            self.parameters[f"{name}.bias"] = linear.bias
