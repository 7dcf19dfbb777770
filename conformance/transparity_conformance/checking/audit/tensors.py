"""The audit of a file's tensors. A loader must read every tensor, and must fail if a tensor is missing."""

import contextlib
import dataclasses
import functools
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import in_every_layer, in_layer
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.audit.fields import KEPT, Audited, AuditProbe, exercised, probe_of
from transparity_conformance.checkpoints.exporting import Edit, export_checkpoint, fields_of, tensors_in
from transparity_conformance.checkpoints.importing import family_called, needed, parts_in
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.reach.features import logits_with
from transparity_conformance.report.audit import AuditedTensor
from transparity_conformance.report.comparison import gap, share


@dataclass(frozen=True, eq=False)
class TensorFile:
    """The tensors in the file of a small model, and a call whose result depends on them."""

    probe: AuditProbe
    parameters: Mapping[str, tuple[str, ...]]
    """The names of the parameters that each tensor contains."""
    needed: frozenset[str]
    """The tensors without which the model cannot be computed."""
    exercised: frozenset[str]
    """The tensors that change the logits of the reference."""
    folder: Path | None = None
    """The folder of the model, which each edit copies; None if each edit writes the model anew."""

    def logits(self, port: Audited, edit: Edit) -> np.ndarray | PortError:
        return port.logits(edit, self.probe, self.folder)

    def is_same(self, one: np.ndarray | PortError, other: np.ndarray) -> bool:
        return not isinstance(one, PortError) and share(gap(one, other), self.probe.allowed) <= 1

    def stand_in(self, names: Sequence[str], logits: np.ndarray) -> tuple[str, float] | None:
        """Find replacements of the tensors `names` that reproduce the logits; return (description, remaining error)."""
        given, ours = self.probe.parameters, [parameter for name in names for parameter in self.parameters[name]]
        for says, replaced in _sources(given, ours):
            if (left := self.probe.left(logits, self.probe.config, {**given, **replaced})) is not None:
                return says, left
        return None

    def result(
        self,
        name: str,
        outcome: Literal["never read", "may be missing"],
        logits: np.ndarray,
        again: np.ndarray | PortError,
        found: tuple[str, float] | None,
    ) -> AuditedTensor:
        """Return the result for a tensor that the port does not need. `again` has the logits under another random
        seed. `found` contains a description of the values that the port uses instead of the tensor, and the
        remaining error."""
        is_drawn = not isinstance(again, PortError) and not self.is_same(again, logits)
        says, left = found or ("random values" if is_drawn else "other values", None)
        without = "never read" if outcome == "never read" else "missing from the file"
        says, error = f"{without}: the port uses {says} instead", self.probe.error(logits)
        return AuditedTensor(name, outcome, says, error, self.probe.allowed, left)


@contextlib.contextmanager
def in_folder(port: Audited, file: TensorFile) -> Iterator[TensorFile]:
    """Write a loader's folder once, as the source of all changed folders, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="transparity-") as folder:
        if port.model_type is not None:
            export_checkpoint(port.model_type, file.probe.config, file.probe.parameters, folder)
            file = replace(file, folder=Path(folder))
        yield file


@functools.lru_cache(maxsize=KEPT)
def tensor_file(model_type: str | None, config: TransformerConfig, dtype: str) -> TensorFile:
    probe = probe_of(config, dtype)
    if model_type is None:
        parameters: dict[str, tuple[str, ...]] = {name: (name,) for name in probe.parameters}
        needed = frozenset(parameters)
    else:
        parameters, needed = hub_file(model_type, probe)
    exercised = (name for name in parameters if any(_counts(probe, ours) for ours in parameters[name]))
    return TensorFile(probe, parameters, needed, frozenset(exercised))


def hub_file(
    model_type: str, probe: AuditProbe, known: Collection[str] = ()
) -> tuple[dict[str, tuple[str, ...]], frozenset[str]]:
    """Return the names of the parameters in each tensor of a family's file, and the tensors that a model needs. To save
    time, return no needed tensors if `known` contains the kinds of all tensors."""
    family = family_called(model_type)
    names = list(tensors_in(family, probe.config, probe.parameters))
    parts = parts_in(family, probe.config, names, parameter_shapes(probe.config))
    parameters = {name: tuple(ours for ours, _ in parts[name]) for name in names if name in parts}
    if all(kind_of(name) in known for name in parameters):
        return parameters, frozenset()
    fields = fields_of(model_type, family, probe.config)
    return parameters, needed(family, fields, names) & parameters.keys()


def _counts(probe: AuditProbe, name: str) -> bool:
    logits = logits_with(probe.config, redrawn(probe, (name,)).parameters, probe.inputs)
    return logits is None or probe.is_off(logits)


def redrawn(probe: AuditProbe, names: tuple[str, ...]) -> AuditProbe:
    changed = {name: np.ascontiguousarray(np.flip(probe.parameters[name]) + np.float32(0.25)) for name in names}
    return dataclasses.replace(probe, parameters={**probe.parameters, **changed})


def kind_of(name: str) -> str:
    return re.sub(r"\d+", "{i}", name, count=1)


def _sources(given: Arrays, names: Collection[str]) -> Iterator[tuple[str, Arrays]]:
    """Yield (description, values) for values that a wrong port may use instead of the parameters `names`."""
    yield "zeros", {name: np.zeros_like(given[name]) for name in names}
    yield "ones", {name: np.ones_like(given[name]) for name in names}
    for layer in sorted({place[1] for name in given if (place := in_layer(name))}):
        others = {name: in_every_layer(name).replace("{i}", str(layer)) for name in names if in_layer(name)}
        if len(others) == len(names) and given.keys() >= set(others.values()):
            yield f"the tensors of layers.{layer}", {name: given[other] for name, other in others.items()}
    first = next(iter(names))
    for other, value in given.items():
        if len(names) == 1 and other != first and value.shape == given[first].shape:
            yield f"{other} (read twice)", {first: value}
        if len(names) == 1 and value.shape[::-1] == given[first].shape and value.ndim == 2:
            yield f"{other} transposed (read twice)", {first: value.T}


def audited_tensors(
    port: Audited, config: TransformerConfig, dtype: str, progress: Progress
) -> Iterator[AuditedTensor]:
    """Test whether the port fails without each tensor and, if the port's logits are wrong, reads each tensor."""
    with in_folder(port, tensor_file(port.model_type, config, dtype)) as file:
        yield from _audited(port, file, progress)


def _audited(port: Audited, file: TensorFile, progress: Progress) -> Iterator[AuditedTensor]:
    yield from _strays(port, file)
    unread = _never_read(port, file, progress)
    required = file.needed - unread.keys() - _reported(port, file)
    for done, name in enumerate(file.parameters):
        progress("leaving out tensors", done, len(file.parameters))
        if name in unread:
            yield unread[name]
        elif (found := _without(port, file, name) if name in required else None) is not None:
            yield found
        else:
            yield AuditedTensor(name, "read" if name in file.exercised else "not exercised")


def _reported(port: Audited, file: TensorFile) -> set[str]:
    """Remove half of the needed tensors, then the other half; return the names that the loader reports. Most loaders
    report all missing tensors, so few tensors remain to be removed one by one."""
    names = [name for name in file.parameters if name in file.needed]
    halves = (names[::2], names[1::2]) if file.folder is not None and len(names) > 2 else ()
    with contextlib.suppress(PortError):  # the port's process ended, so remove each tensor separately
        return {name for half in halves for name in port.reported(str(file.folder), half)}
    return set()


def missed_in_variants(
    port: Audited, config: TransformerConfig, dtype: str, progress: Progress
) -> Iterator[AuditedTensor]:
    """Yield results for tensors that exist only if a field has another value, such as biases or an untied head."""
    if port.model_type is None:
        return
    kinds = {kind_of(name) for name in tensor_file(port.model_type, config, dtype).parameters}
    for (variant, probe), *_ in exercised(port.model_type, config, dtype):
        if probe is None or variant.fields is not None:
            continue
        parameters, needed = hub_file(port.model_type, probe, kinds)
        names = [name for name in reversed(list(parameters)) if name in needed and kind_of(name) not in kinds]
        new = {kind_of(name): name for name in names}
        answer = port.logits(Edit(), probe) if new else None
        if answer is None or isinstance(answer, PortError) or probe.is_off(answer):
            continue  # the port refuses or ignores the field
        kinds |= new.keys()
        progress(f"leaving out tensors while {variant.name} is {variant.value}", 0, 1)
        with in_folder(port, TensorFile(probe, parameters, needed, frozenset())) as file:
            found = [each for name in new.values() if (each := _without(port, file, name)) is not None]
        yield from (replace(each, name=f"{each.name} (with {variant.name} {variant.value})") for each in found)


def _strays(port: Audited, file: TensorFile) -> Iterator[AuditedTensor]:
    """Yield each tensor that no model uses, but that changes the port's logits if the file contains it."""
    for name, value in strays(port.model_type, file.probe).items() if port.model_type is not None else ():
        answer = file.logits(port, Edit(beside={name: value}))
        if isinstance(answer, PortError) or not file.probe.is_off(answer):
            continue
        plain = file.logits(port, Edit())
        if not isinstance(plain, PortError) and not file.probe.is_off(plain):
            says = "no model of the family uses this tensor, but the port's result changes if the file contains it"
            yield AuditedTensor(name, "not ignored", says, file.probe.error(answer), file.probe.allowed)


def strays(model_type: str, probe: AuditProbe) -> dict[str, np.ndarray]:
    """Return tensors that published folders contain although no model needs them: weights for multi-token prediction,
    rotary frequencies, and a copy of a tied head."""
    config, held = probe.config, tensors_in(family_called(model_type), probe.config, probe.parameters)
    norm = next((name for name, value in held.items() if value.ndim == 1), "norm.weight")
    found = {f"mtp.{norm}": np.ones(config.embed_dim, np.float32)}
    if config.positions == "rotary":
        query = next((name for name in held if ".0." in name and "attn" in name), "attn.0.weight")
        shares = np.arange(0, config.rotated_dim, 2) / config.rotated_dim
        found[f"{query.rsplit('.', 2)[0]}.rotary_emb.inv_freq"] = (config.rope_theta**-shares).astype(np.float32)
    if config.tied_head:
        size = (config.vocab_size, config.embed_dim)
        found |= dict([("lm_head.weight", np.array(value)) for value in held.values() if value.shape == size][:1])
    return {name: value for name, value in found.items() if name not in held}


def _never_read(port: Audited, file: TensorFile, progress: Progress) -> dict[str, AuditedTensor]:
    answer = file.logits(port, Edit())
    if isinstance(answer, PortError) or not np.isfinite(answer).all() or not file.probe.is_off(answer):
        return {}
    exercised = [name for name in file.parameters if name in file.exercised]
    found = []
    for done, name in enumerate(exercised):
        progress("changing tensors", done, len(exercised))
        if file.is_same(port.logits(Edit(), redrawn(file.probe, file.parameters[name])), answer):
            found.append(name)
    again = file.logits(port, Edit(seed=1))
    together = file.stand_in(found, answer) if found else None
    return {
        name: file.result(name, "never read", answer, again, together or file.stand_in([name], answer))
        for name in found
    }


def _without(port: Audited, file: TensorFile, name: str) -> AuditedTensor | None:
    """Return the result of the port without the tensor `name`; None if the port fails, as it should."""
    logits = file.logits(port, Edit(without=(name,)))
    if isinstance(logits, PortError):
        return None
    again = file.logits(port, Edit(without=(name,), seed=1))
    return file.result(name, "may be missing", logits, again, file.stand_in([name], logits))
