"""The tensors of a small model's file: the parameters in each, and whether they are needed and exercised."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.checking.audit.probing import KEPT, AuditProbe, probe_of
from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called, needed, parts_in
from transparity_conformance.oracle.reach.features import logits_with


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The file of a small model: its tensors, and the call by which they are told."""

    probe: AuditProbe
    parameters: Mapping[str, tuple[str, ...]]
    """The parameters in each tensor."""
    needed: frozenset[str]
    """The tensors without which the file is not of the model."""
    exercised: frozenset[str]
    """The tensors that change the reference's answer."""

    @property
    def ends(self) -> set[str]:
        """The first and the last tensor of each kind."""
        first = {kind_of(name): name for name in reversed(list(self.parameters))}
        last = {kind_of(name): name for name in self.parameters}
        return {*first.values(), *last.values()}


@functools.lru_cache(maxsize=KEPT)
def tensor_file(model_type: str | None, config: TransformerConfig, dtype: str) -> TensorFile:
    probe = probe_of(config)
    if model_type is None:
        held: dict[str, tuple[str, ...]] = {name: (name,) for name in probe.parameters}
        needed = frozenset(held)
    else:
        held, needed = hub_file(model_type, probe)
    exercised = (name for name in held if any(_counts(probe, ours, dtype) for ours in held[name]))
    return TensorFile(probe, held, needed, frozenset(exercised))


def hub_file(model_type: str, probe: AuditProbe) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """The parameters in each tensor of a family's file, and the tensors that it cannot be without."""
    family = family_called(model_type)
    names = list(tensors_in(family, probe.config, probe.parameters))
    parts = parts_in(family, probe.config, names, parameter_shapes(probe.config))
    held = {name: tuple(ours for ours, _ in parts[name]) for name in names if name in parts}
    fields = fields_of(model_type, family, probe.config)
    return held, needed(family, fields, names) & held.keys()


def _counts(probe: AuditProbe, name: str, dtype: str) -> bool:
    """Return whether another value of a parameter shows in the reference."""
    logits = logits_with(probe.config, redrawn(probe, (name,)).parameters, probe.inputs)
    return logits is None or probe.is_off(logits, dtype)


def redrawn(probe: AuditProbe, names: tuple[str, ...]) -> AuditProbe:
    """The same call with other numbers in some parameters."""
    changed = {name: np.ascontiguousarray(np.flip(probe.parameters[name]) + np.float32(0.25)) for name in names}
    return dataclasses.replace(probe, parameters={**probe.parameters, **changed})


def kind_of(name: str) -> str:
    """The name of a tensor without the number of its layer, which is the first in it."""
    return re.sub(r"\d+", "{i}", name, count=1)
