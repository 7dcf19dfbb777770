"""Judge what a port wrote for a bundle: its activations, and the results of its capabilities."""

import dataclasses
import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transparity.taps import in_layer
from transparity_conformance.capabilities.capability import Answers, Capability, ForwardPass, Requests, Way
from transparity_conformance.capabilities.table import CAPABILITIES, why_not
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.diagnosis.judge import Actual, Progress, ignore_progress, judge
from transparity_conformance.diagnosis.reach.coverage import covered
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.exchange.bundle import Bundle, Section
from transparity_conformance.exchange.manifest import MANIFEST, Several, read_manifest
from transparity_conformance.exchange.reading import read_actual, read_bundle
from transparity_conformance.oracle.probes import lean
from transparity_conformance.oracle.reach.vocabulary import unseen_tokens
from transparity_conformance.report.formatting import ranges, some
from transparity_conformance.report.report import CapabilityResult, Report, Verdict, not_compared, with_capabilities
from transparity_conformance.storage.paths import is_file, is_folder

NO_TOKEN = -1
"""The number that fills a row after its last token, because all rows of a tensor have the same length."""


def compare(
    folder: Path, actual: Path, checkpoint: Path | None, progress: Progress, *, logits_only: bool = False
) -> Iterator[Report]:
    """Judge the results for a bundle, or for several bundles in a folder; yield a report for each bundle. For several
    bundles, `actual` is a folder with one file per bundle, named after the bundle. The default of `checkpoint` is the
    checkpoint inside the bundle, or the bundle's own weights. Raise `TransparityError` if a bundle, a file with
    results, or the checkpoint is invalid."""
    manifest = read_manifest(folder) if is_file(folder / MANIFEST) else None
    if not isinstance(manifest, Several):
        bundle = read_bundle(folder, checkpoint, progress)
        answers = read_actual(actual, bundle)
        yield judge_bundle(bundle, answers, port=str(actual), progress=progress, logits_only=logits_only)
        return
    if checkpoint is not None:
        raise BundleError(f"{folder} has several bundles, each with its own checkpoint; leave out --checkpoint.")
    if not is_folder(actual):
        raise BundleError(f"{actual} is not a folder; expected a folder with a file for each bundle in {folder}.")
    for inside, name in manifest.bundles.items():
        file = actual / f"{inside}.safetensors"
        if is_file(file):
            yield from compare(folder / inside, file, None, progress, logits_only=logits_only)
        else:
            yield Report(name, "inconclusive", None, not_compared=(f"{inside}: {file} is missing",), port=str(file))


def judge_bundle(
    bundle: Bundle,
    outputs: Actual,
    *,
    progress: Progress | None = None,
    stopped: bool = False,
    budget: float | None = None,
    **how: Any,
) -> Report:
    """Judge the results of a port for a bundle.

    If the port was `stopped`, a missing tensor is no fault. `how` contains the arguments `logits_only`, `port`,
    `located` and `ranks` of `judge`. If the bundle has weights, only probes with logits are judged. If the bundle
    refers to a checkpoint, all probes are judged, and missing activations are listed as not compared.
    """
    taps = {key: outputs[key] for key in bundle.probes if key in outputs}
    if bundle.has_weights:
        taps = {
            key: {tap: value for tap, value in of.items() if f"{key}/{tap}" not in bundle.asked}
            for key, of in taps.items()
            if "logits" in of
        }
    probes = {key: lean(probe, taps.get(key, ()), progress or ignore_progress) for key, probe in bundle.probes.items()}
    with np.errstate(all="ignore"):  # a port may return any number
        report = judge(
            bundle.name,
            probes,
            taps,
            dtype=bundle.dtype,
            progress=progress,
            clock=Clock(budget, progress),
            needs_logits=bundle.has_weights,
            **how,
        )
        report = covered(report, bundle.config, [probes[key] for key in taps])
        if not bundle.has_weights:
            lines = (*not_brought(bundle, outputs), *unseen_tokens(bundle.config, probes.values()))
            capabilities = f"{', '.join(CAPABILITIES)}: a bundle for a checkpoint has only the forward pass"
            return dataclasses.replace(report, not_compared=(*report.not_compared, *lines, capabilities))
        return with_capabilities(report, _judge_sections(bundle, outputs, taps, report.verdict, stopped=stopped))


def _judge_sections(
    bundle: Bundle, outputs: Actual, taps: Actual, verdict: Verdict, *, stopped: bool
) -> CapabilityResult:
    logits = {key: of["logits"] for key, of in taps.items()}
    forward = ForwardPass(bundle.probes, logits, bundle.dtype)
    flat = {f"{group}/{name}": value for group, of in outputs.items() for name, value in of.items()}
    answers = {name: flat[name] for name in bundle.asked if name in flat}
    found = CapabilityResult()
    for section in (each for each in bundle.capabilities.values() if each.row.applies(bundle.config)):
        found += _judge_section(section, answers, forward, verdict, stopped=stopped)
    return found


def not_brought(bundle: Bundle, outputs: Actual) -> Iterator[str]:
    """Yield lines about missing activations. Probes with the same missing activations share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for key in bundle.probes:
        taps = [name.partition("/")[2] for name in bundle.shapes if name.startswith(f"{key}/")]
        alike.setdefault(tuple(tap for tap in taps if tap not in outputs.get(key, {})), []).append(key)
    for lacking, of in alike.items():
        yield from (f"missing for {', '.join(of)}: {line}" for line in in_ranges(lacking))


def in_ranges(names: Collection[str]) -> Iterator[str]:
    """Yield one line for each range of layers with the same activations, and a line for all other names."""
    taps: dict[tuple[str, int], list[str]] = {}
    layers: dict[tuple[str, ...], list[int]] = {}
    for name in names:
        if place := in_layer(name):
            taps.setdefault(place[:2], []).append(place[2])
    for (stack, layer), of_layer in taps.items():
        layers.setdefault((stack, *of_layer), []).append(layer)
    for (stack, *of_layer), numbers in layers.items():
        yield f"{stack}.layers.{', '.join(ranges(numbers, ' to '))}: {', '.join(of_layer)}"
    if rest := [name for name in names if not in_layer(name)]:
        yield ", ".join(rest)


def _judge_section(
    section: Section, answers: Answers, forward: ForwardPass, verdict: Verdict, *, stopped: bool
) -> CapabilityResult:
    row, found, reasons = section.row, CapabilityResult(), {*section.reasons.values()}
    if reason := (reasons.pop() if len(reasons) == 1 else "") or row.after(verdict):
        return not_compared(f"{row.ways[0].claim}: {reason}")
    for way in (way for way in row.ways if way.claim in section.reasons):
        verdicts = {claim.id: claim.verdict for claim in found.claims}
        if reason := section.reasons[way.claim] or why_not(way, forward, verdicts):
            found += not_compared(f"{way.claim}: {reason}")
            continue
        of_way = section.requests[way.claim]
        requests = {key: request for key, request in of_way.items() if way.is_comparable(key, forward)}
        found += _judge_way(row, way, requests, answers, forward, stopped=stopped)
    for claim in found.claims:
        if claim.verdict == "agrees" and not math.isfinite(claim.budget):
            raise BundleError(
                f"The section {row.name} of the bundle has values that overflow, so {claim.id} has no finite tolerance."
            )
    return found


def _judge_way(
    row: Capability, way: Way, requests: Requests, answers: Answers, forward: ForwardPass, *, stopped: bool
) -> CapabilityResult:
    names = {key: list(row.shapes(key, request)) for key, request in requests.items()}
    missing = {key: [name for name in names[key] if name not in answers] for key in requests}
    skipped = _not_written(way, requests, names, missing)
    if row.missing_is_wrong and not stopped:
        judged = {key: request for key, request in requests.items() if len(missing[key]) < len(names[key])}
    else:
        judged = {key: request for key, request in requests.items() if not missing[key]}
    if requests and not judged:
        return skipped
    return skipped + row.judge(way, judged, {name: _trimmed(name, value) for name, value in answers.items()}, forward)


def _trimmed(name: str, value: np.ndarray) -> np.ndarray:
    """Remove the last columns of tokens if they contain only `NO_TOKEN`; return other values unchanged."""
    if not name.endswith("/tokens"):
        return value
    used = np.flatnonzero((value != NO_TOKEN).any(axis=0))
    return value[:, : used[-1] + 1 if used.size else 0]


def _not_written(
    way: Way, requests: Requests, names: dict[str, list[str]], missing: dict[str, list[str]]
) -> CapabilityResult:
    says = f"{way.claim}: the port did not write"
    if missing == names:
        return not_compared(*[f"{says} any tensor"] * bool(names))
    reasons = []
    for key in [key for key in requests if missing[key]]:
        which, lacking = "any tensor", [name.partition("/")[2] for name in missing[key]]
        if len(lacking) < len(names[key]):
            which = f"{len(lacking)} of {len(names[key])} tensors ({some(lacking, 3)})"
        reasons.append(f"{says} {which}" + (f" for {requests[key].name!r}" if len(requests) > 1 else ""))
    return not_compared(*reasons)
