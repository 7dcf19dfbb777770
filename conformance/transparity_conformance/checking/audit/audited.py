"""A port that is audited: built with a change, and called on a model of which the logits are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.checking.calls import answer_or_error
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.hub import HubBuild, seeded
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.running import Port, built, in_precision, run

LENGTHS = (21, 18)
"""Tokens of the source and of the target: beyond every window, bucket and original length of a variant."""

ROWS = [0, 1, 3]
"""Rows of mixed inputs in which every query sees a token: all different, padding on the right, padding inside."""


class AuditProbe(Probe):
    """A call of which the logits are compared."""

    @functools.cached_property
    def oracle(self) -> LogitsOracle:
        return LogitsOracle(self.config, self.parameters, self.inputs)

    def error(self, logits: np.ndarray) -> float:
        """The largest difference from the reference's logits."""
        return gap(logits, self.oracle.expected["logits"])

    def budget(self, dtype: str) -> float:
        """The largest difference that rounding explains."""
        return self.oracle.budget("logits", dtype)

    def is_off(self, logits: np.ndarray, dtype: str) -> bool:
        """Return whether logits differ by more than rounding from the reference's."""
        return share(self.error(logits), self.budget(dtype)) > 1

    def left(self, logits: np.ndarray, dtype: str, config: TransformerConfig, parameters: Arrays) -> float | None:
        """The difference from a reference with another configuration or parameters; None if it is more than rounding,
        or the parameters are not of that model."""
        expected = logits_of(config, parameters, self.inputs)
        left = np.inf if expected is None else gap(logits, expected)
        return left if share(left, self.budget(dtype)) <= 1 else None


def logits_of(config: TransformerConfig, parameters: Arrays, inputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """The reference's logits; None if the parameters are not of the model."""
    shapes = parameter_shapes(config)
    if any(name not in parameters or parameters[name].shape != shapes[name] for name in shapes):
        return None
    return logits_with(config, parameters, inputs)


def probe_of(config: TransformerConfig, *, tiny: bool = False) -> AuditProbe:
    """The call of a model with drawn weights; `tiny`: with activations beside which eps is large."""
    source, target = (min(length, config.max_length) for length in LENGTHS)
    inputs = {name: value[ROWS] for name, value in mixed_inputs(config, 3, source, target).items()}
    parameters = probe_parameters(config, 12, 1e-3) if tiny else probe_parameters(config, 11)
    return AuditProbe("audit", "audit", "a field or a tensor that counts", config, parameters, inputs)


@dataclass(frozen=True)
class Audited:
    """A port that is built with a change."""

    edited: Callable[[Edit], Port]
    """Returns the port with a change."""
    model_type: str | None
    """The family of the folders that a loader reads; None: the port is a `build`."""
    files: tuple[str, str]
    """Where its fields and its tensors are."""

    def logits(self, edit: Edit, probe: AuditProbe, dtype: str) -> np.ndarray | PortError:
        """The answer of the port that is built with a change, or the error with which it refuses."""

        def call() -> np.ndarray:
            return run(built(in_precision(self.edited(edit), dtype), probe), probe, logits_only=True)["logits"]

        return answer_or_error(call)


def audited_of(build: Port) -> Audited:
    """Return a port as one that can be audited: a loader of a family, or a `build(config, parameters)`."""
    if isinstance(build, HubBuild | IsolatedBuild) and build.model_type is not None:
        return Audited(build.edited, build.model_type, ("config.json", "model.safetensors"))
    return Audited(functools.partial(_edited, build), None, ("config", "parameters"))


def _edited(port: Port, edit: Edit) -> Port:
    """`port` with a parameter left out."""

    @functools.wraps(port)
    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray], **options: Any) -> Any:
        with seeded(edit.seed):
            left = {name: value for name, value in parameters.items() if name != edit.without}
            return port(config, left, **options)

    return build
