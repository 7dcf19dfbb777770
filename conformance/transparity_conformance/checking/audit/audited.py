"""Ports that can be audited: a loader whose folders are changed, or a `build` whose parameters are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.running.hub import HubBuild, seeded
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.running import Port


@dataclass(frozen=True)
class Audited:
    """A port that is built with a change."""

    edited: Callable[[Edit], Port]
    """Returns the port with a change."""
    model_type: str | None
    """The family of the folders that a loader reads; None: the port is a `build`."""
    files: tuple[str, str]
    """Where its fields and its tensors are."""


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
