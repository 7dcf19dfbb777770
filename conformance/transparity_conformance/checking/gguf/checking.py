"""Check a GGUF file: its metadata, its tensors, and the effect of mistakes on the logits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity.limits.memory import check_fits
from transparity_conformance.checking.check import check
from transparity_conformance.checking.gguf.metadata import metadata_faults, read_gguf
from transparity_conformance.checking.gguf.tensors import (
    Compared,
    HubTensors,
    check_family,
    compare,
    head_faults,
    name_faults,
    names_in_file,
)
from transparity_conformance.checking.options import Options
from transparity_conformance.checking.systems import System
from transparity_conformance.checkpoints import importing
from transparity_conformance.checkpoints.exporting import tensors_in
from transparity_conformance.checkpoints.importing import family_called, parameters_from
from transparity_conformance.diagnosis.judge import Progress
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probes_with
from transparity_conformance.report.report import ClaimResult, Divergence, Report, Verdict
from transparity_conformance.running.loading import LoadError
from transparity_numpy.port import build as build_numpy
from transparity_numpy.transformer import transformer

NOT_RUN = "llama.cpp itself: the checker compares the file with its checkpoint, but does not run llama.cpp"

Model = tuple[TransformerConfig, Arrays]


class GgufCheck:
    """A comparison of a GGUF file with the checkpoint from which the file was made."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.file = read_gguf(Path(options.spec))

    def systems(self, checkpoint: importing.Checkpoint) -> Iterator[System]:
        check_family(checkpoint.model_type, self.file.architecture, self.file.path)
        yield System(checkpoint.model_type, checkpoint.config, checkpoint.parameters)

    def __call__(self, system: System, progress: Progress) -> Report:
        hub = self._checkpoint(system)
        progress("comparing tensors", 0, 2)
        metadata, fields = metadata_faults(self.file, hub.config)
        named = list(name_faults(self.file, hub))
        usable = [name for name, theirs in hub.names.items() if theirs not in {fault.where for fault in named}]
        compared = compare(hub, self.file.tensors, usable)
        faults = [*metadata, *named, *compared.faults, *head_faults(self.file, hub)]
        report = self._report(system.name, faults, compared)
        if len(usable) < len(hub.names) or fields is None:
            why = "the logits: the reference cannot run the file's shapes or metadata, or some weights are missing"
            return report.adding(not_compared=[why])
        progress("comparing logits", 1, 2)
        return self._with_logits(report, system, compared, fields, progress)

    def _checkpoint(self, system: System) -> HubTensors:
        assert system.parameters is not None
        config, family = system.config, family_called(system.name)
        numbers = sum(value.size for value in system.parameters.values())
        check_fits(f"The comparison with {self.file.path}", 12 * numbers, LoadError)
        tensors = tensors_in(family, config, system.parameters)
        names = names_in_file(system.name, tensors, config.num_decoder_layers, family.prefixes)
        return HubTensors(system.name, config, tensors, names)

    def _report(self, name: str, faults: list[Divergence], compared: Compared) -> Report:
        worst = sorted(compared.measured, key=lambda each: each.share)[-1:]
        verdict: Verdict = "diverges" if compared.faults else "agrees"
        where = [f"{each.tap} ({each.probe})" for each in worst]
        claims = [ClaimResult("gguf.tensors", verdict, each.error, each.budget, *where) for each in worst]
        report = Report(name, "inconclusive" if compared.not_compared else "agrees", None)
        report = replace(report, dtype=self.options.dtype, port=self.options.spec)
        measured, not_compared = tuple(compared.measured), (NOT_RUN, *compared.not_compared)
        return report.adding(*faults, claims=claims, not_compared=not_compared, measured=measured)

    def _with_logits(
        self, report: Report, system: System, compared: Compared, fields: Mapping[str, Any], progress: Progress
    ) -> Report:
        assert system.parameters is not None
        family, config = family_called(system.name), system.config
        exact = config, system.parameters
        right = config, parameters_from(family, config, compared.as_converted_rightly)
        report = report.adding(notes=_effect("quantization alone", exact, right))
        try:
            wrong = replace(config, **fields), parameters_from(family, config, compared.as_they_are)
        except TransparityError as error:
            return report.adding(notes=[f"the metadata of the file does not define a model: {error}"])
        report = report.adding(notes=_effect("the combination of all faults", right, wrong))
        if all(fault.causes for fault in report.faults):
            return report

        how = self.options.named("dtype", "budget", "located", "quick")
        build = lambda *_: build_numpy(*wrong)
        found = check(build, system.name, config=config, parameters=right[1], progress=progress, **how).faults
        return replace(report, faults=(*report.faults, *(fault for fault in found if fault.causes)))


def _effect(says: str, right: Model, wrong: Model) -> Iterator[str]:
    config, parameters = right
    if wrong[0] == config and all(np.array_equal(wrong[1][name], parameters[name]) for name in parameters):
        return
    probes = probes_with(config, parameters, "checkpoint")
    inputs: dict[str, Any] = dict(probes.get("text", probes["mixed"]).inputs)
    ours, theirs = (transformer(*model, **inputs) for model in (right, wrong))
    error, changed = np.abs(ours - theirs).max(), (ours.argmax(-1) != theirs.argmax(-1)).sum()
    yield (
        f"{says} changes the logits by up to {error:.3g}, while their standard deviation is {ours.std():.3g}; the most "
        f"likely token changes at {changed} of {ours.argmax(-1).size} positions"
    )
