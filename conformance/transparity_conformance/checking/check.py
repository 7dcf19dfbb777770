"""The check: is a port right and, if not, where and why?

A port is run on every probe, twice on one of them; what it says is held to the oracle, then the reference is walked
through it (`walk`), and every segment that is wrong by itself is explained (`causes`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import check_parameters
from transparity.presets import preset as preset_called
from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.checking.audit.audit import with_audit
from transparity_conformance.checking.audit.audited import audited_of
from transparity_conformance.checking.forms.reading import in_form
from transparity_conformance.checking.forms.recognise import form_of, with_form
from transparity_conformance.checking.known import Known, name_of
from transparity_conformance.checking.offered import with_everything_offered
from transparity_conformance.checking.ranks.against_one import against_one, with_ranks
from transparity_conformance.checking.ranks.dropout import with_dropout
from transparity_conformance.checking.ranks.group import group_of, ranked_build, ranks_of
from transparity_conformance.checking.ranks.sizes import divisible, probes_on
from transparity_conformance.checking.reach.calls import Ran, Reached, reach, run_all, whole
from transparity_conformance.checking.reach.drawn import with_drawn_weights
from transparity_conformance.checking.reach.long import call_long, can_be_walked, leave_out
from transparity_conformance.checking.reach.verdict import with_reach
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.diagnosis.judge import Actual, Located, Progress, judge, silent, untold
from transparity_conformance.diagnosis.reach.coverage import coverage_of
from transparity_conformance.diagnosis.search.clock import BUDGET, Clock
from transparity_conformance.identify.alignment.heard import NOT_ASKED, Heard, hear, row_of, wrong_logits
from transparity_conformance.identify.alignment.lines.cached import with_line_of_step
from transparity_conformance.identify.alignment.lines.reported import with_first_line, with_lines
from transparity_conformance.identify.alignment.lines.unsteady import with_unsteady_line
from transparity_conformance.identify.alignment.ties.exchanges import with_exchanges
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.lean import lean
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_left_out, probes_of, probes_with
from transparity_conformance.oracle.probes import probes as probes_of_preset
from transparity_conformance.oracle.reach.long import LongProbe, long_probes
from transparity_conformance.oracle.reach.models import reach_of, reach_of_preset
from transparity_conformance.oracle.reach.vocabulary import every_token, unseen_tokens
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import ClaimResult, Interrupted, Report
from transparity_conformance.running.hub import loaded_here
from transparity_conformance.running.process import isolation
from transparity_conformance.running.process.isolation import TIMEOUT
from transparity_conformance.running.process.running import Port, built, folder_note, run, told_dtype

FORM_ALONE = "all that is computed before the answer, and all that a port may offer: answers are in another form"

NOT_AUDITED = "config.json, model.safetensors: the loader was not audited"

__all__ = ["Actual", "Port", "PortError", "Progress", "check"]


def check(
    build: Port,
    preset: str | None = None,
    *,
    family: str | None = None,
    config: TransformerConfig | None = None,
    parameters: Arrays | None = None,
    dtype: str = "float32",
    logits_only: bool = False,
    progress: Progress | None = None,
    isolated: bool = False,
    timeout: float = TIMEOUT,
    budget: float = BUDGET,
    name: str | None = None,
    audit: bool | None = None,
    located: Located = untold,
    ranks: int = 1,
    lengths: Sequence[int] = (),
) -> Report:
    """Check a port against the reference.

    Args:
        build: the port, `build(config, parameters)` → `forward(**tokens)`; with a `family`, its loader, `load(folder)`.
        preset: a preset, which is checked at its probe size; or the name of a `config` in the report.
        family: a family of models (`llama` …), whose folders the port reads; its small model without a `config`.
        config, parameters: any other configuration; its parameters, which are drawn without them.
        dtype, logits_only: the precision, which `build` is told if it takes `dtype="…"`; the logits alone.
        isolated, ranks: run the port, which another process can import, in a process of its own, or in so many.
        timeout, budget: seconds that an isolated port has for one answer; those for the search for causes.
        name, lengths: the port's name in the report; prompts of so many tokens are compared, too, at every position.
        audit: a field or a tensor that is not followed diverges; None: that of a loader is listed.
        progress, located: receive every step; and a report once it is known where the port diverges, or known better.

    Raises `PortError` if a port fails; `TransparityError` for what does not fit; `Interrupted`, with a report: Ctrl-C.
    """
    preset, config = _given(preset, family, config, parameters, ranks)
    known, name, many = Known(located), name or name_of(build), max(ranks, ranks_of(build))
    asked = Asked(preset, config, parameters, dtype, logits_only, budget, name, known, many, tuple(lengths))
    with _built_by(build, family, timeout if isolated or ranks > 1 else None, ranks) as port, known.kept():
        return _audited(port, asked, progress or silent, audit)


def _given(
    preset: str | None, family: str | None, config: TransformerConfig | None, parameters: Arrays | None, ranks: int
) -> tuple[str | None, TransformerConfig | None]:
    """The name and the configuration that are checked: a preset or a family on several ranks at sizes that divide."""
    is_own = config is not None or parameters is not None
    if family is not None:
        preset, config = preset or family, config or example_config(family)
    if ranks == 1 or is_own or preset is None:
        return preset, config
    return preset, divisible(config or preset_called(preset), ranks)


def _audited(port: Port, asked: Asked, progress: Progress, is_wanted: bool | None) -> Report:
    """The report with the audit of a port; given weights are those of one model, and have no variants."""
    report = _on_ranks(told_dtype(port, asked.dtype), asked, progress)
    audited = audited_of(port)
    is_loader = audited.model_type is not None
    if asked.parameters is not None or not (is_loader if is_wanted is None else is_wanted):
        missing = (NOT_AUDITED,) if is_loader else ()
        return dataclasses.replace(report, not_compared=(*report.not_compared, *missing))
    asked.known.report = report
    config = asked.config or preset_called(asked.name).resized()
    return with_audit(report, audited, config, progress, diverges=bool(is_wanted))


def _built_by(
    build: Port, family: str | None, timeout: float | None, ranks: int
) -> contextlib.AbstractContextManager[Port]:
    """The port as a `build`, from its loader with a `family`; in a process of its own with a `timeout`, or in one for
    each of several `ranks`."""
    if timeout is not None and ranks > 1:
        return contextlib.closing(ranked_build(isolation.spec_of(build), timeout, ranks).loading(family))
    if timeout is not None:
        return isolation.isolated(isolation.spec_of(build), timeout, family)
    return contextlib.nullcontext(build) if family is None else loaded_here(build, family)


@dataclass(frozen=True, eq=False)
class Asked:
    """A check as it was asked for: the arguments of `check`."""

    preset: str | None
    config: TransformerConfig | None
    parameters: Arrays | None
    dtype: str
    logits_only: bool
    budget: float
    port: str
    known: Known
    ranks: int
    lengths: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The system's name in the report."""
        return self.preset or "config"

    @functools.cached_property
    def probes(self) -> Mapping[str, Probe]:
        """The probes that can be judged in the precision."""
        wanted = _probes(self.preset, self.config, self.parameters)
        probes = {key: probe for key, probe in wanted.items() if key != "hot" or self.dtype not in HALF}
        return probes_on(probes, self.ranks)

    @functools.cached_property
    def long(self) -> list[LongProbe]:
        """The long prompts that were asked for."""
        first = next(iter(self.probes.values()))
        return long_probes(first.config, first.parameters, self.lengths)


def _on_ranks(build: Port, asked: Asked, progress: Progress) -> Report:
    """The report of a port; of one on several ranks, after a comparison with one rank of the same code."""
    group = group_of(build)
    if group is None:
        return _checked(build, asked, progress)
    ranks = against_one(group, build, asked.probes, dtype=asked.dtype, logits_only=asked.logits_only, progress=progress)
    is_sharding = ranks.one_rank != "agrees"  # what one rank has, too, is not the sharding's doing
    report = _checked(build, asked, progress, group.ranks if is_sharding else 1)
    report = with_ranks(report, ranks, group.differing, asked.probes)
    if report.verdict != "agrees":
        return report
    first = next(iter(asked.probes.values()))
    return with_dropout(report, group, built(build, first), first)


def _checked(build: Port, asked: Asked, progress: Progress, ranks: int = 1) -> Report:
    """The report of the forward pass, how far it reaches, capabilities and histories; `ranks`, as for `judge`."""
    dtype, logits_only = asked.dtype, asked.logits_only
    assert len(asked.long) == len(set(asked.lengths))  # what does not fit is told before the port runs
    ran = run_all(build, asked.probes, progress, logits_only=logits_only)
    probes = {key: lean(probe, ran.actual[key], progress) for key, probe in ran.probes.items()}
    ran = dataclasses.replace(ran, probes=probes)
    first = next(iter(probes.values()))
    repeated = _repeated(first, ran.actual[first.name], run(ran.forward, first, logits_only=logits_only), dtype)
    options: dict[str, Any] = {"dtype": dtype, "logits_only": logits_only, "progress": progress, "repeated": repeated}
    options["ranks"] = ranks
    form = form_of(probes, ran.actual, dtype)
    if form is not None and not form.has_all_logits:
        report = Report(
            asked.name, "diverges", None, dtype=dtype, port=asked.port, coverage=coverage_of(probes.values())
        )
        return with_form(dataclasses.replace(report, not_compared=(FORM_ALONE,)), form)
    ran = ran if form is None else in_form(ran, form, probes)
    report = _forward_pass(asked, probes, ran, options, progress)
    if repeated.verdict == "agrees":
        report = with_drawn_weights(report, build, first, ran.actual[first.name])
    report = report if form is None else with_form(report, form)
    if ran.raised is not None and report.verdict != "diverges":  # what is wrong elsewhere may be why
        raise ran.raised
    report = dataclasses.replace(report, notes=(*report.notes, *folder_note(build, asked.parameters)))
    asked.known.report = report
    preset = asked.preset if asked.config is None else None
    report, reached = _with_reach(report, build, ran, probes, preset, asked, progress)
    is_explained = reached.wrong and not reached.is_history and not report.faults[-1].is_misshapen
    if is_explained and can_be_walked(reached.wrong[0].probe):
        report = _explained_at_other_sizes(asked, report, reached, progress, ranks)
    left_out = probes_left_out(first.config, asked.probes, dtype)
    report = with_everything_offered(report, build, ran, left_out, is_drawn=asked.parameters is None)
    return report if logits_only else with_line_of_step(report, ran.forward, ran.probes)


def _forward_pass(
    asked: Asked, probes: Mapping[str, Probe], ran: Ran, options: Mapping[str, Any], progress: Progress
) -> Report:
    """The verdict on the answers to the probes, with causes and lines."""
    clock, is_steady = Clock(asked.budget, progress), options["repeated"].verdict == "agrees"
    heard = _heard(asked, probes, ran, clock, progress) if is_steady else NOT_ASKED
    report = _judged(asked, probes, ran.actual, heard, {**options, "clock": clock, "port": asked.port})
    is_heard = is_steady or asked.logits_only or not report.faults
    return report if is_heard else with_unsteady_line(report, ran.forward, next(iter(probes.values())))


def _heard(asked: Asked, probes: Mapping[str, Probe], ran: Ran, clock: Clock, progress: Progress) -> Heard:
    """The operations of a port whose logits are wrong; that they are is told first."""
    wrong = wrong_logits(probes, ran.actual, asked.dtype)
    if wrong is None or asked.logits_only:
        return NOT_ASKED
    asked.known(Report(asked.name, "diverges", "logits", (wrong,), dtype=asked.dtype, port=asked.port))
    return hear(ran.forwards, probes, ran.actual, asked.dtype, clock, progress)


def _judged(
    asked: Asked, probes: Mapping[str, Probe], actual: Actual, heard: Heard, options: Mapping[str, Any]
) -> Report:
    """The verdict on what the port shows; with what was heard, unless the logits alone explain more."""
    every = {**heard.probes, **probes}  # what one row tells first is not asked of the others
    shown = {**actual, **{key: {**actual.get(key, {}), **call.taps} for key, call in heard.calls.items()}}
    try:
        located = functools.partial(_located, asked.known, heard, every)
        report = judge(asked.name, every, shown, **options, located=located)
        report = with_lines(with_exchanges(report, heard, every, actual), heard, every)
    except Interrupted as ended:
        raise Interrupted(with_lines(ended.report, heard, every)) from None
    if heard.calls and not all(fault.causes for fault in report.faults):
        try:
            alone = judge(asked.name, probes, actual, **options)
        except Interrupted:
            raise Interrupted(report) from None
        if all(fault.causes for fault in alone.faults):  # then what has no cause makes no difference to the logits
            report = dataclasses.replace(report, faults=tuple(fault for fault in report.faults if fault.causes))
            if not _mistakes(alone) <= _mistakes(report):
                return with_lines(alone, heard, probes)
    return report


def _located(known: Known, heard: Heard, probes: Mapping[str, Probe], report: Report) -> None:
    known(with_first_line(report, heard, probes))


def _mistakes(report: Report) -> set[tuple[str, str]]:
    """The causes, and what they say without their places."""
    causes = (cause for fault in report.faults for cause in fault.causes)
    return {(cause.mistake, cause.says.partition(", at ")[0]) for cause in causes}


def _with_reach(
    report: Report,
    build: Port,
    ran: Ran,
    probes: Mapping[str, Probe],
    preset: str | None,
    asked: Asked,
    progress: Progress,
) -> tuple[Report, Reached]:
    """Call a port that agrees at other sizes, too; the report says how far it reaches."""
    first, parameters = next(iter(probes.values())), asked.parameters
    if report.verdict != "agrees":
        leave_out(asked.long, ran.reached)
        missing = (*report.not_compared, *ran.reached.refused, *ran.reached.failed)
        return dataclasses.replace(report, coverage=coverage_of(probes.values()), not_compared=missing), ran.reached
    if preset is not None:
        models = reach_of_preset(preset)
    else:
        models = reach_of(first.config, first.parameters, is_drawn=parameters is None)
    models = models if parameters is None else (*models, every_token(first.config, parameters))
    reached = reach(build, ran.forward, models, report.dtype, progress, ran.reached)
    call_long(ran.forward, asked.long, report.dtype, progress, reached)
    unseen = [] if parameters is None else unseen_tokens(first.config, [*probes.values(), *reached.probes])
    report = with_reach(report, reached, first.config, probes.values())
    return dataclasses.replace(report, not_compared=(*report.not_compared, *unseen)), reached


def _explained_at_other_sizes(asked: Asked, report: Report, reached: Reached, progress: Progress, ranks: int) -> Report:
    """The report with the causes and lines of the first wrong call at another size, as far as they are found."""
    asked.known(report)
    wrong, clock = reached.wrong[0].probe, Clock(asked.budget, progress)
    probe, row = whole(wrong), row_of(wrong)
    forward = reached.forwards[id(wrong.parameters)]
    try:
        actual = {probe.name: run(forward, probe, logits_only=asked.logits_only)}
    except PortProcessError:
        raise
    except PortError:  # it answered this call before, and wrongly
        return report
    heard = NOT_ASKED
    if not asked.logits_only:
        heard = hear({id(wrong.parameters): forward}, {probe.name: probe}, actual, asked.dtype, clock, progress, row)
    options = {"dtype": asked.dtype, "progress": progress, "clock": clock, "port": asked.port, "ranks": ranks}
    found = _judged(asked, {probe.name: probe}, actual, heard, options)
    if not any(fault.causes or fault.source for fault in found.faults):
        return report
    kept = [fault for fault in report.faults if fault.where != "logits" or fault.causes]
    first = found.first_divergence
    return dataclasses.replace(
        report, faults=(*kept, *found.faults), first_divergence=first, notes=(*report.notes, *found.notes)
    )


def _probes(preset: str | None, config: TransformerConfig | None, parameters: Arrays | None) -> Mapping[str, Probe]:
    """The probes of a preset, of a configuration, or of a configuration with given parameters."""
    if config is None and (preset is None or parameters is not None):
        needs = "parameters and no config of theirs" if parameters is not None else "neither a preset nor a config"
        raise PortError(f"check() was given {needs}; name one.")
    if config is None:
        assert preset is not None
        preset_called(preset)
        return probes_of_preset(preset)
    if parameters is None:
        return probes_of(config, preset or "config")
    if not isinstance(parameters, InFolder):  # then they were checked when they were read
        check_parameters(config, parameters)
    return probes_with(config, parameters, preset or "config")


def _repeated(probe: Probe, once: Mapping[str, np.ndarray], again: Mapping[str, np.ndarray], dtype: str) -> ClaimResult:
    """Return whether two runs say the same; to the bit is not asked of a device that sums in any order."""
    worst = ClaimResult("two_runs_are_the_same", "agrees", 0.0, 0.0, "logits")
    for name, value in once.items():
        budget = probe.oracle.budget(name, dtype)
        error = gap(value, again[name])
        if share(error, budget) > 1:
            return ClaimResult("two_runs_are_the_same", "diverges", error, budget, name)
        if error > worst.error:
            worst = ClaimResult("two_runs_are_the_same", "agrees", error, budget, name)
    return worst
