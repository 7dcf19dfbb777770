"""Name the port's faults as in the catalogue, if the checker's NumPy reference supports the family."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import TransparityError
from transparity_conformance.against.probes import Answer, is_padded
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.diagnosis.judge import Progress, judge
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.check.findings import PRACTICALLY_ALL
from transparity_conformance.report.report import Report
from transparity_conformance.running.inputs import NAMES

MOST_PROBES = 3
"""The inputs to try for each fault if edits explain the answers; otherwise, all inputs are tried."""


def with_names(
    report: Report, folder: Path | None, answers: Sequence[Answer], budget: float | None, progress: Progress
) -> Report:
    """Add a note on each fault that explains the answers. If there is only one difference and only one fault, name the
    fault in the difference."""
    if folder is None or not any(not each.agrees for each in answers):
        return report
    try:
        checkpoint = import_checkpoint(folder)
    except TransparityError:  # the family is not supported
        return report
    most = MOST_PROBES if all(fault.causes for fault in report.faults) else len(answers)
    probes = dict(itertools.islice(_probes(checkpoint.config, checkpoint.parameters, answers), most))
    actual = {each.probe: {"logits": each.actual} for each in answers if each.probe in probes}
    if not any(each.probe in probes and not each.agrees for each in answers):
        return report
    ours = judge(
        report.preset, probes, actual, dtype=report.dtype, logits_only=True, progress=progress, clock=Clock(budget)
    )
    causes = [cause for fault in ours.faults for cause in fault.causes]
    if not causes or any(not fault.causes or fault.causes[-1].explained < PRACTICALLY_ALL for fault in ours.faults):
        return report
    notes = [f"known as {each.mistake}: {each.says}; see `transparity explain {each.mistake}`" for each in causes]
    faults = tuple(report.faults)
    if len(faults) == len(causes) == 1:
        (fault,), (known,) = faults, causes
        found = fault.causes[0] if fault.causes else known  # if no edit explains the fault, use the catalogue's cause
        faults = (dataclasses.replace(fault, causes=(dataclasses.replace(found, mistake=known.mistake),)),)
    return dataclasses.replace(report, faults=faults, notes=(*report.notes, *notes))


def _probes(
    config: TransformerConfig, parameters: Mapping[str, Any], answers: Sequence[Answer]
) -> Iterator[tuple[str, Probe]]:
    """Convert inputs without padding to probes of the checker's NumPy reference, wrong answers first."""
    names = {theirs: ours for ours in (*config.input_names, *config.further_inputs) for theirs in NAMES.get(ours, ())}
    whole = [each for each in answers if not is_padded(each.inputs) and len(each.inputs) < 3]
    right = [each for each in whole if each.agrees]
    for each in [*(each for each in whole if not each.agrees), *right]:
        inputs = {names[name]: value for name, value in each.inputs.items() if name in names}
        if set(config.input_names) <= set(inputs):
            yield each.probe, Probe("against", each.probe, "", config, dict(parameters), inputs)
