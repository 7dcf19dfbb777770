"""The stages for the forward pass: run the port, record its operations, judge it, and build it again."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from transparity_conformance.capabilities.capability import ForwardPass
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.table import failed
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.checking.calls import answer_or_error, run_all
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.checking.stages.forms import form_of, in_form
from transparity_conformance.checking.stages.reach import can_be_walked
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.checkpoints.reading import headers, tensor_files
from transparity_conformance.diagnosis.judge import Actual, judge
from transparity_conformance.diagnosis.reach.coverage import DRAWN, coverage_of
from transparity_conformance.diagnosis.search.answer import Answer
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.segment import Combination, scope_of
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.identify.alignment.calls import with_line_of_step, with_unsteady_line
from transparity_conformance.identify.alignment.heard import (
    NOT_ASKED,
    RecordedPort,
    hear,
    row_of,
    shows_all,
    wrong_logits,
)
from transparity_conformance.identify.alignment.reported import (
    hypothesis_of,
    with_exchanges,
    with_first_line,
    with_lines,
)
from transparity_conformance.oracle.probes import Probe, lean
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Interrupted, Report, with_capabilities
from transparity_conformance.running.hub import seeded
from transparity_conformance.running.process.running import built, folder_note, is_loader, run

NOT_TIED = "the output head is not tied to the token embedding: its weight is random in every build of the port"

FOLDER = "loader.folder"

HALF_PRECISIONS = {"BF16": "bfloat16", "F16": "float16"}
"""Stored dtypes in which the loaded model may also compute."""


def run_probes(evidence: Evidence) -> None:
    """Run the port on every probe, and compare a second run on the first probe with the first run."""
    arguments = evidence.arguments
    assert len(arguments.long) == len(set(arguments.lengths))  # invalid lengths raise before the port runs
    answered = functools.partial(_report_if_wrong, evidence)
    how: dict[str, Any] = {"logits_only": arguments.logits_only, "answered": answered}
    ran = run_all(evidence.build, arguments.probes, evidence.progress, **how)
    probes = {key: lean(probe, ran.actual[key], evidence.progress) for key, probe in ran.probes.items()}
    evidence.ran = ran = dataclasses.replace(ran, probes=probes)
    first = evidence.first
    again = run(ran.forward, first, logits_only=arguments.logits_only)
    evidence.repeated = _repeated(first, ran.actual[first.name], again, arguments.dtype)


def _report_if_wrong(evidence: Evidence, probe: Probe, taps: Mapping[str, np.ndarray]) -> None:
    if not evidence.is_wrong_reported and not probe.is_large:
        wrong = wrong_logits({probe.name: probe}, {probe.name: taps}, evidence.arguments.dtype)
        if wrong is not None:
            evidence.is_wrong_reported = True
            evidence.located(_that_diverges(evidence, wrong))


def _that_diverges(evidence: Evidence, wrong: Divergence) -> Report:
    arguments = evidence.arguments
    return Report(arguments.name, "diverges", "logits", (wrong,), dtype=arguments.dtype, port=arguments.port)


def _repeated(probe: Probe, once: Mapping[str, np.ndarray], again: Mapping[str, np.ndarray], dtype: str) -> ClaimResult:
    """Compare two runs of the port within the budget, because some devices sum in varying order."""
    worst = ClaimResult.of("two_runs_are_the_same", 0.0, 0.0, "logits")
    for name, value in once.items():
        found = ClaimResult.of(worst.id, gap(value, again[name]), probe.oracle.budget(name, dtype), name)
        if found.is_wrong:
            return found
        worst = found if found.error > worst.error else worst
    return worst


def recognise_form(evidence: Evidence) -> None:
    ran = evidence.ran
    evidence.form = form_of(ran.probes, ran.actual, evidence.arguments.dtype)
    if evidence.form is not None and evidence.has_logits():
        evidence.ran = in_form(ran, evidence.form, ran.probes)


def listen(evidence: Evidence) -> None:
    """If logits are wrong, report the divergence, and then record the port's operations."""
    arguments, ran = evidence.arguments, evidence.ran
    wrong = wrong_logits(ran.probes, ran.actual, arguments.dtype)
    if wrong is not None:
        evidence(_that_diverges(evidence, wrong))
        clock, dtype = evidence.clock, arguments.dtype
        answer = Answer.of(ran.probes, ran.actual, dtype, clock, evidence.judged_ranks)
        known: Combination = ()
        if not shows_all(ran.probes, ran.actual):
            evidence.answer, known = answer, answer.single()
        evidence.recorded = hear(
            ran.forwards, ran.probes, ran.actual, dtype, clock.part(), evidence.progress, known=known
        )


def judge_answers(evidence: Evidence) -> None:
    """Compare the results with the reference, and find causes and lines of code. If the causes contradict the recorded
    matches of operations and taps, match the operations again with the causes in the reference."""
    ran, answer = evidence.ran, evidence.answer
    further = evidence.clock, answer, evidence.repeated
    evidence.report = _judged(evidence, ran.probes, ran.actual, evidence.recorded, *further)
    if answer is not None and answer.contradicts:
        answer.singles, clock, dtype = [answer.told], evidence.clock.part(), evidence.arguments.dtype
        again = hear(ran.forwards, ran.probes, ran.actual, dtype, clock, evidence.progress, known=answer.told)
        if again.calls:
            evidence.recorded = again
            evidence.report = _judged(evidence, ran.probes, ran.actual, again, *further)


def _judged(
    evidence: Evidence,
    probes: Mapping[str, Probe],
    actual: Actual,
    recorded: RecordedPort,
    clock: Clock,
    answer: Answer | None,
    repeated: ClaimResult | None = None,
) -> Report:
    arguments = evidence.arguments
    every = {**recorded.probes, **probes}  # single rows, which were recorded, come first
    shown = {**actual, **{key: {**actual.get(key, {}), **call.taps} for key, call in recorded.calls.items()}}
    if answer is not None:
        answer.found = {tap for call in recorded.calls.values() for tap in call.taps}.difference(*actual.values())
    try:
        report = judge(
            arguments.name,
            every,
            shown,
            port=arguments.port,
            dtype=arguments.dtype,
            logits_only=arguments.logits_only,
            progress=evidence.progress,
            repeated=repeated,
            clock=clock,
            located=lambda first: evidence(with_first_line(first, recorded, every)),
            ranks=evidence.judged_ranks,
            answer=answer if recorded.calls else None,
        )
    except Interrupted as ended:
        raise Interrupted(with_lines(ended.report, recorded, every)) from None
    return with_lines(with_exchanges(report, recorded, every, actual), recorded, every)


def find_unsteady_line(evidence: Evidence) -> None:
    evidence.report = with_unsteady_line(evidence.report, evidence.ran.forward, evidence.first)


def build_again(evidence: Evidence) -> None:
    """If a fault has no cause, build the port again. If the logits then change, the cause is a random weight. If only
    the logits of a model with a tied head are wrong, the cause is that the port does not tie the head."""
    report, probe, dtype = evidence.report, evidence.first, evidence.arguments.dtype
    unexplained = next((index for index, fault in enumerate(report.faults) if not fault.causes), None)
    if unexplained is None or probe.is_large:
        return
    with seeded(1):
        again = answer_or_error(lambda: run(built(evidence.build, probe), probe, logits_only=True))
    if isinstance(again, PortError):  # some ports cannot be built twice
        return
    error = judged_gap(probe, "logits", again["logits"], evidence.ran.actual[probe.name]["logits"], dtype)
    if share(error, probe.oracle.budget("logits", dtype)) <= 1:
        return
    faults = list(report.faults)
    is_head = faults[unexplained].where == "logits" and probe.config.tied_head
    drawn = Cause("weight-drawn", DRAWN, None, error, 0.0)
    cause = Cause("head-tied", NOT_TIED, None, error, 0.0) if is_head else drawn
    faults[unexplained] = dataclasses.replace(faults[unexplained], causes=(cause,))
    evidence.report = dataclasses.replace(report, faults=tuple(faults))


def name_form(evidence: Evidence) -> None:
    """Report results that are not logits as the first divergence, with the form of the results as the cause."""
    form, report = evidence.form, evidence.report
    assert form is not None
    if not evidence.has_logits():
        why = "activations and capabilities: the port does not return logits"
        report = report.adding(not_compared=[why], coverage=coverage_of(evidence.ran.probes.values()))
    is_all = form.has_all_logits and report.verdict == "agrees"
    cause = Cause("answer-form", form.says, None, form.error, float(is_all))
    fault = Divergence("logits", math.inf, form.budget, (cause,), is_misshapen=True)
    theirs, ours = form.shapes
    report = dataclasses.replace(report, faults=(), first_divergence=None).adding(
        fault, *report.faults, notes=[f"logits has the shape {theirs}; expected {ours}"]
    )
    evidence.report = report


def end_forward_pass(evidence: Evidence) -> None:
    """Raise the port's error on a probe, unless the report contains a divergence, which may have caused the error. Add
    a note if a loader received the checkpoint's own folder."""
    raised = evidence.ran.raised
    if raised is not None and evidence.report.verdict != "diverges":
        raise raised
    evidence.add(notes=folder_note(evidence.build, evidence.arguments.parameters))


def is_copied(evidence: Evidence) -> bool:
    parameters = evidence.arguments.parameters
    is_named = isinstance(parameters, InFolder) and not parameters.is_given_itself
    return is_named and is_loader(evidence.build) and evidence.agrees()


def load_as_named(evidence: Evidence) -> None:
    """Pass the user's own folder to the loader, and compare the logits of the first probe. All other calls use a copy
    in float32 in one file, but the folder may have another dtype and several files. The loader may compute in the
    stored dtype."""
    parameters, probe, dtype = evidence.arguments.parameters, evidence.first, evidence.arguments.dtype
    assert isinstance(parameters, InFolder)
    folder, where = parameters.folder, tensor_files(parameters.folder)
    itself = dataclasses.replace(probe, parameters=InFolder(parameters, folder, is_ours=True))
    answer = answer_or_error(lambda: run(built(evidence.build, itself), itself, logits_only=True)["logits"])
    stored = {tensor.dtype for tensor in headers(where).values()}
    says = f"{folder} ({' and '.join(sorted(stored))} tensors in {count(len(set(where.values())), 'file')})"
    if isinstance(answer, PortError):
        evidence.report = with_capabilities(evidence.report, failed(FOLDER, str(folder), answer))
        return
    halves = [HALF_PRECISIONS[each] for each in sorted(stored & HALF_PRECISIONS.keys())]
    tried = [_as_stored(probe, answer, each, dtype) for each in (dtype, *halves)]
    error, budget = min(tried, key=lambda each: share(*each))
    is_wrong = share(error, budget) > 1
    cause = Cause(
        "folder-read", f"load(folder) is right for a float32 copy in one file, but wrong for the folder {says}"
    )
    evidence.add(
        *[Divergence("logits", error, budget, (cause,), probe=probe.name)] * is_wrong,
        claims=[ClaimResult.of(FOLDER, error, budget, f"logits of the folder {says}")],
        notes=[f"load(folder) was called with a float32 copy in one file, and once with the folder itself, {says}"],
    )


def _as_stored(probe: Probe, logits: np.ndarray, computed: str, dtype: str) -> tuple[float, float]:
    budget = probe.budget(dtype if computed == dtype else f"float32:{computed}")
    return judged_gap(probe, "logits", logits, probe.oracle.expected["logits"], computed), budget


def is_explained_at_other_size(evidence: Evidence) -> bool:
    reached = evidence.reached
    is_open = bool(reached.wrong) and not reached.is_history and not evidence.report.faults[-1].is_misshapen
    return is_open and can_be_walked(reached.wrong[0].probe)


def explain_at_other_size(evidence: Evidence) -> None:
    """Add the causes and lines of code of the first wrong call with other lengths or sizes than the probes."""
    arguments, report = evidence.arguments, evidence.report
    evidence(report)
    wrong, clock = evidence.reached.wrong[0].probe, evidence.new_clock()
    probe = Probe(wrong.case, wrong.name, wrong.purpose, wrong.config, wrong.parameters, wrong.inputs)
    forward = evidence.reached.forwards[id(wrong.parameters)]
    row = row_of(wrong)
    taps = answer_or_error(lambda: run(forward, probe, logits_only=arguments.logits_only))
    if isinstance(taps, PortError):  # the port fails only in the repeated call
        return
    probes, actual, recorded, answer = {probe.name: probe}, {probe.name: taps}, NOT_ASKED, None
    if not arguments.logits_only:
        forwards = {id(wrong.parameters): forward}
        answer = Answer.of(probes, actual, arguments.dtype, clock, evidence.judged_ranks)
        recorded = hear(forwards, probes, actual, arguments.dtype, clock, evidence.progress, row)
    found = _judged(evidence, probes, actual, recorded, clock, answer)
    told = (answer.told if answer else ()) or told_in(found, probe)
    seen = {*taps, *(tap for call in recorded.calls.values() for tap in call.taps)}
    guessed = tuple(each for each in told if not is_seen(each, seen, probe))
    if changes_right_answers(evidence.ran.probes, guessed, arguments.dtype):
        made = [told_in(dataclasses.replace(found, faults=(fault,)), probe) for fault in found.faults]
        certain = [bool(each) and all(is_seen(one, seen, probe) for one in each) for each in made]
        faults = zip(found.faults, certain, strict=True)
        found = dataclasses.replace(found, faults=tuple(it if sure else it.unexplained for it, sure in faults))
    evidence.report = report
    if any(fault.causes or fault.source for fault in found.faults):
        kept = tuple(fault for fault in report.faults if fault.where != "logits" or fault.causes)
        report = dataclasses.replace(report, faults=kept)
        evidence.report = report.adding(*found.faults, notes=found.notes, first_divergence=found.first_divergence)


def told_in(report: Report, probe: Probe) -> Combination:
    causes = ((cause, cause.at or fault.where) for fault in report.faults for cause in fault.causes)
    made = (hypothesis_of(probe, cause, where) for cause, where in causes)
    return tuple(each for each in made if each is not None)


def is_seen(hypothesis: Hypothesis, seen: Collection[str], probe: Probe) -> bool:
    """Return whether `seen` contains the taps at which a fault acts, and all taps of the same sublayers. The port then
    certainly has the fault at this length, even if the port runs other code at other lengths."""
    scopes = {scope_of(site) for site in hypothesis.sites} - {""}
    needed = {*hypothesis.sites, *(tap for tap in probe.oracle.expected if scope_of(tap) in scopes)}
    return bool(hypothesis.sites) and needed <= {*seen}


def changes_right_answers(probes: Mapping[str, Probe], told: Combination, dtype: str) -> bool:
    """Return whether the faults `told` change the logits of a probe. The port is right on all probes, so such faults
    explain only other lengths. For example, a port may pad keys with zeros, which act like an attention sink, only at
    some lengths."""
    for probe in probes.values() if told else ():
        with contextlib.suppress(Impossible):
            wrong = walk(probe, {}, told, until="logits")["logits"]
            error = judged_gap(probe, "logits", wrong, probe.oracle.expected["logits"], dtype)
            if share(error, probe.oracle.budget("logits", dtype)) > 1:
                return True
    return False


def find_line_of_step(evidence: Evidence) -> None:
    """Find the line at which a wrong step of cached decoding first differs from the forward pass."""
    if all(fault.where != "step" for fault in evidence.report.faults):
        return
    ran, reached = evidence.ran, evidence.reached
    passed = ForwardPass(ran.probes, {}, evidence.arguments.dtype, reached=[each.probe for each in reached.right])
    requests = list(STEPS.ways[0].all_requests(passed).values())
    evidence.report = with_line_of_step(evidence.report, ran.forward, requests, reached.forwards)
