"""The audit of model.safetensors: every tensor has to be read, and missed if it is not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.checking.audit.audited import Audited, Told
from transparity_conformance.checking.audit.probing import AuditProbe, exercised
from transparity_conformance.checking.audit.replaced import stand_in
from transparity_conformance.checking.audit.tensor_file import TensorFile, hub_file, kind_of, redrawn, tensor_file
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.report.audit.result import AuditedTensor
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.running.process.running import built, run

Unread = Literal["never read", "may be missing"]

SECONDS = 30.0
"""Seconds after which those of the first and the last layer alone are left out; PyTorch needs 1 or 2 for all."""


def audited_tensors(
    audited: Audited, config: TransformerConfig, dtype: str, told: Told, progress: Progress
) -> Iterator[AuditedTensor]:
    """Build the port without each tensor; and, if it is wrong, with each tensor changed."""
    file = tensor_file(audited.model_type, config, dtype)
    port = _Port(audited, file, dtype, told)
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
    audited: Audited, config: TransformerConfig, dtype: str, told: Told, progress: Progress
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
        port = _Port(audited, TensorFile(probe, held, needed, frozenset()), dtype, told)
        if not new or port.logits(Edit()) is None:  # it refuses the field
            continue
        kinds |= new.keys()
        progress(f"leaving out tensors with {variant.name} {variant.value}", 0, 1)
        found = (port.without(name) for name in new.values())
        yield from (replace(each, name=f"{each.name} (with {variant.name} {variant.value})") for each in found if each)


class _Port:
    """A port, built from the file with changes."""

    def __init__(self, audited: Audited, file: TensorFile, dtype: str, told: Told) -> None:
        self.audited, self.file, self.dtype, self.told = audited, file, dtype, told
        self.budget = file.probe.budget(dtype)

    def logits(self, edit: Edit, probe: AuditProbe | None = None) -> np.ndarray | None:
        """The answer of the port from a changed file; None if it refuses the file."""
        probe = probe or self.file.probe
        try:
            return run(built(self.told(self.audited.edited(edit)), probe), probe, logits_only=True)["logits"]
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
