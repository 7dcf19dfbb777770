"""Ports that can be audited: a loader whose folders are changed, or a `build` whose parameters are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.running.hub import HubBuild, seeded
from transparity_conformance.running.process.isolation import IsolatedBuild
from transparity_conformance.running.process.running import Port

Told = Callable[[Port], Port]
"""Gives a `build` the precision of the check."""


class Audited(Protocol):
    """A port that is built with a change."""

    @property
    def model_type(self) -> str | None:
        """The family of the folders that a loader reads; None: the port is a `build`."""

    @property
    def files(self) -> tuple[str, str]:
        """Where its fields and its tensors are."""

    def edited(self, edit: Edit) -> Port:
        """The port with a change."""


class Loader:
    """A port's own loader."""

    files = ("config.json", "model.safetensors")

    def __init__(self, build: HubBuild | IsolatedBuild) -> None:
        self.build, self.model_type = build, build.model_type

    def edited(self, edit: Edit) -> Port:
        return self.build.edited(edit)


class Build:
    """A `build(config, parameters)`."""

    files, model_type = ("config", "parameters"), None

    def __init__(self, build: Port) -> None:
        self.build = build

    def edited(self, edit: Edit) -> Port:
        """`build` with a parameter left out."""

        @functools.wraps(self.build)
        def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray], **options: Any) -> Any:
            with seeded(edit.seed):
                left = {name: value for name, value in parameters.items() if name != edit.without}
                return self.build(config, left, **options)

        return build


def audited_of(build: Port) -> Audited:
    """A port as one that can be audited."""
    is_loader = isinstance(build, HubBuild | IsolatedBuild) and build.model_type is not None
    return Loader(build) if is_loader else Build(build)  # type: ignore[arg-type]
