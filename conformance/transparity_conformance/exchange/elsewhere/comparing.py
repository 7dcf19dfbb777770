"""Comparing what a port brought back from elsewhere, tap by tap: neither it nor the reference is held in memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from transparity.limits.files import is_file, is_folder
from transparity_conformance.capabilities.table import CAPABILITIES
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Progress, judge
from transparity_conformance.diagnosis.reach.coverage import covered
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.exchange.bundle.bundle import Bundle
from transparity_conformance.exchange.elsewhere.manifest import read_manifest
from transparity_conformance.exchange.elsewhere.names import in_ranges
from transparity_conformance.exchange.elsewhere.reading import read_answers, read_bundle
from transparity_conformance.exchange.elsewhere.writing import CHECKPOINT
from transparity_conformance.oracle.probes import lean
from transparity_conformance.oracle.reach.vocabulary import unseen_tokens
from transparity_conformance.report.report import Report

Answers = Mapping[str, Mapping[str, np.ndarray]]
"""What a port brought back, by probe and tap."""


def compare_elsewhere(
    folder: Path, actual: Path, checkpoint: Path | None, progress: Progress, *, logits_only: bool = False
) -> Iterator[Report]:
    """Yield a report on a bundle that names a checkpoint, or on each of several.

    Args:
        folder: the bundle, or the folder of several.
        actual: the file of the answers; of several bundles a folder, with a file for each that is named as it is.
        checkpoint: the checkpoint; None: the one within the bundle.

    Raises `TransparityError` for a bundle, answers or a checkpoint that are not right.
    """
    manifest = read_manifest(folder)
    if "bundles" not in manifest:
        bundle = read_bundle(folder, manifest, checkpoint or _within(folder), progress)
        yield judge_answers(bundle, read_answers(actual, bundle), str(actual), progress, logits_only=logits_only)
        return
    if checkpoint is not None:
        raise BundleError(f"{folder} has several bundles, each with a checkpoint in it; leave out --checkpoint.")
    if not is_folder(actual):
        raise BundleError(f"{actual} is no folder; expected one with a file for each bundle in {folder}.")
    for inside, name in manifest["bundles"].items():
        file = actual / f"{inside}.safetensors"
        if is_file(file):
            yield from compare_elsewhere(folder / inside, file, None, progress, logits_only=logits_only)
        else:
            yield Report(name, "inconclusive", None, not_compared=(f"{inside}: there is no {file}",), port=str(file))


def _within(folder: Path) -> Path:
    if not is_folder(folder / CHECKPOINT):
        raise BundleError(f"{folder} has no weights; give the checkpoint that it names by --checkpoint FOLDER.")
    return folder / CHECKPOINT


def judge_answers(
    bundle: Bundle,
    answers: Answers,
    port: str,
    progress: Progress,
    *,
    logits_only: bool = False,
    budget: float = BUDGET,
) -> Report:
    """Judge what a port brought back for a bundle: what is missing is listed, and without all logits nothing agrees."""
    probes = {key: lean(probe, answers.get(key, ()), progress) for key, probe in bundle.probes.items()}
    report = judge(
        bundle.name,
        probes,
        answers,
        port=port,
        dtype=bundle.dtype,
        logits_only=logits_only,
        progress=progress,
        clock=Clock(budget, progress),
        needs_logits=False,
    )
    report = covered(report, bundle.config, [probes[key] for key in answers])
    lines = (*not_brought(bundle, answers), *unseen_tokens(bundle.config, probes.values()))
    capabilities = f"{', '.join(CAPABILITIES)}: a port elsewhere brings back its forward pass alone"
    return dataclasses.replace(report, not_compared=(*report.not_compared, *lines, capabilities))


def not_brought(bundle: Bundle, answers: Answers) -> Iterator[str]:
    """Yield every tap of every probe that did not come back, as lines; probes that lack the same are told together."""
    taps: dict[str, list[str]] = {}
    for name in bundle.shapes:
        probe, _, tap = name.partition("/")
        if tap not in answers.get(probe, {}):
            taps.setdefault(probe, []).append(tap)
    alike: dict[tuple[str, ...], list[str]] = {}
    for probe, missing in taps.items():
        alike.setdefault(tuple(missing), []).append(probe)
    for lacking, of in alike.items():
        for line in in_ranges(lacking):
            yield f"not brought back of {', '.join(of)}: {line}"
