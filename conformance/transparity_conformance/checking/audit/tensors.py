"""The audit of model.safetensors: every tensor has to be read, and missed if it is not there."""

from __future__ import annotations

import dataclasses
import functools
import re
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.checking.audit.audited import Audited
from transparity_conformance.checking.audit.fields import KEPT, AuditProbe, exercised, probe_of
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.checkpoints.exporting import fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called, needed, parts_in
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.report.audit.result import AuditedTensor
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.process.running import built, run


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


_LAYER = re.compile(r"\.layers\.\d+\.")


def stand_in(probe: AuditProbe, names: Collection[str], logits: np.ndarray, dtype: str) -> tuple[str, float] | None:
    """What a port that answers `logits` has in place of the parameters `names`, and the difference that this leaves."""
    budget = probe.budget(dtype)
    for says, replaced in _sources(probe.parameters, names):
        expected = logits_with(probe.config, {**probe.parameters, **replaced}, probe.inputs)
        if expected is not None and share(left := gap(logits, expected), budget) <= 1:
            return says, left
    return None


def _sources(given: Arrays, names: Collection[str]) -> Iterator[tuple[str, Arrays]]:
    """What may stand in the place of the parameters `names`, and the numbers of each."""
    yield "zeros", {name: np.zeros_like(given[name]) for name in names}
    yield "ones", {name: np.ones_like(given[name]) for name in names}
    for layer in sorted({found[0] for name in given if (found := _LAYER.search(name))}):
        others = {name: _LAYER.sub(layer, name) for name in names if _LAYER.search(name)}
        if len(others) == len(names) and given.keys() >= set(others.values()):
            yield f"those of {layer.strip('.')}", {name: given[other] for name, other in others.items()}
    first = next(iter(names))
    for other, value in given.items():
        if len(names) == 1 and other != first and value.shape == given[first].shape:
            yield f"{other}, which is read twice", {first: value}
        if len(names) == 1 and value.shape[::-1] == given[first].shape and value.ndim == 2:
            yield f"{other} transposed, which is read twice", {first: value.T}


Unread = Literal["never read", "may be missing"]

SECONDS = 30.0
"""Seconds after which those of the first and the last layer alone are left out; PyTorch needs 1 or 2 for all."""


def audited_tensors(
    audited: Audited, config: TransformerConfig, dtype: str, progress: Progress
) -> Iterator[AuditedTensor]:
    """Build the port without each tensor; and, if it is wrong, with each tensor changed."""
    file = tensor_file(audited.model_type, config, dtype)
    port = _Port(audited, file, dtype)
    unread, began, ends = port.never_read(progress), time.monotonic(), file.ends
    for done, name in enumerate(sorted(file.parameters, key=lambda name: name not in ends)):
        progress("leaving out tensors", done, len(file.parameters))
        if name in unread:
            yield unread[name]
        elif name in file.needed and name not in ends and time.monotonic() - began > SECONDS:
            yield AuditedTensor(name, "not tried", "the port takes too long to load, and misses that of other layers")
        elif (found := port.without(name) if name in file.needed else None) is not None:
            yield found
        else:
            yield AuditedTensor(name, "read" if name in file.exercised else "not exercised")


def missed_in_variants(
    audited: Audited, config: TransformerConfig, dtype: str, progress: Progress
) -> Iterator[AuditedTensor]:
    """The tensors that the model of a family has with another field alone (a head, biases), and that are not missed."""
    if audited.model_type is None:
        return
    kinds = {kind_of(name) for name in tensor_file(audited.model_type, config, dtype).parameters}
    for (variant, probe), *_ in exercised(audited.model_type, config, dtype):
        if probe is None or variant.fields is not None:
            continue
        held, needed = hub_file(audited.model_type, probe)
        new = {kind_of(name): name for name in reversed(list(held)) if name in needed and kind_of(name) not in kinds}
        port = _Port(audited, TensorFile(probe, held, needed, frozenset()), dtype)
        if not new or port.logits(Edit()) is None:  # it refuses the field
            continue
        kinds |= new.keys()
        progress(f"leaving out tensors with {variant.name} {variant.value}", 0, 1)
        found = (port.without(name) for name in new.values())
        yield from (replace(each, name=f"{each.name} (with {variant.name} {variant.value})") for each in found if each)


class _Port:
    """A port, built from the file with changes."""

    def __init__(self, audited: Audited, file: TensorFile, dtype: str) -> None:
        self.audited, self.file, self.dtype = audited, file, dtype
        self.budget = file.probe.budget(dtype)

    def logits(self, edit: Edit, probe: AuditProbe | None = None) -> np.ndarray | None:
        """The answer of the port from a changed file; None if it refuses the file."""
        probe = probe or self.file.probe
        try:
            return run(built(self.audited.edited(edit), probe), probe, logits_only=True)["logits"]
        except PortProcessError:
            raise
        except PortError:
            return None

    def never_read(self, progress: Progress) -> dict[str, AuditedTensor]:
        """The tensors that a wrong port does not follow, and what it has in their place."""
        answer = self.logits(Edit())
        exercised = [name for name in self.file.parameters if name in self.file.exercised]
        if answer is None or not np.isfinite(answer).all() or not self.file.probe.is_off(answer, self.dtype):
            return {}
        found = []
        for done, name in enumerate(exercised):
            progress("changing tensors", done, len(exercised))
            other = self.logits(Edit(), redrawn(self.file.probe, self.file.parameters[name]))
            if other is not None and self._same(other, answer):
                found.append(name)
        error, again = self.file.probe.error(answer), self.logits(Edit(seed=1))
        is_drawn = again is not None and not self._same(answer, again)
        together = self._stand_in(found, answer) if found else None
        return {
            name: self._told(name, "never read", error, together or self._stand_in([name], answer), is_drawn=is_drawn)
            for name in found
        }

    def without(self, name: str) -> AuditedTensor | None:
        """The result for a tensor that is left out; None if the port refuses the file."""
        logits = self.logits(Edit(without=name))
        if logits is None:
            return None
        again = self.logits(Edit(without=name, seed=1))
        is_drawn = again is not None and not self._same(logits, again)
        error = self.file.probe.error(logits)
        return self._told(name, "may be missing", error, self._stand_in([name], logits), is_drawn=is_drawn)

    def _same(self, one: np.ndarray, other: np.ndarray) -> bool:
        return share(gap(one, other), self.budget) <= 1

    def _stand_in(self, names: list[str], logits: np.ndarray) -> tuple[str, float] | None:
        ours = [parameter for name in names for parameter in self.file.parameters[name]]
        return stand_in(self.file.probe, ours, logits, self.dtype)

    def _told(
        self, name: str, outcome: Unread, error: float, found: tuple[str, float] | None, *, is_drawn: bool
    ) -> AuditedTensor:
        """The result for a tensor that the port does not need."""
        says, left = found or ("random numbers" if is_drawn else "numbers of its own", None)
        without = "never read" if outcome == "never read" else "missing from the file"
        return AuditedTensor(name, outcome, f"{without}: in its place the port has {says}", error, self.budget, left)
