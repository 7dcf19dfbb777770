"""The stage that calls a port with other lengths, batch sizes and model sizes, if the port agrees on all probes."""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.limits.memory import available_memory
from transparity.taps import tap_shapes
from transparity_conformance.capabilities.port_calls import PortError, signature_of
from transparity_conformance.checking.calls import Comparison, ReachedCalls, build_model, call_model
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.checkpoints.exporting import accepted_by
from transparity_conformance.diagnosis.probe_result import error_profile
from transparity_conformance.diagnosis.reach.coverage import (
    HISTORY,
    SECONDS_OF_A_PORT,
    Call,
    bisect,
    boundary,
    coverage_of,
    covered,
)
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.oracle.memory import BYTES_OF_AN_ACTIVATION
from transparity_conformance.oracle.probes import Probe, sees_something
from transparity_conformance.oracle.reach.long import LongProbe, has_prefixes
from transparity_conformance.oracle.reach.models import (
    WITHOUT_LIMIT,
    ReachModel,
    ReachProbe,
    masked_model,
    reach_of,
    reach_of_preset,
)
from transparity_conformance.oracle.reach.thresholds import LONGEST, LONGEST_THRESHOLD
from transparity_conformance.oracle.reach.vocabulary import every_token, unseen_tokens
from transparity_conformance.report.comparison import difference, share
from transparity_conformance.report.formatting import count
from transparity_conformance.report.report import Cause, ClaimResult, Divergence
from transparity_conformance.running.process.running import built, is_loader, model_type_of, run

CLAIM, LONG = "forward.reach", "forward.long"

QUICK = "other sizes, capabilities, repeated calls and the audit: left out by --quick"


def call_at_other_sizes(evidence: Evidence) -> None:
    """If the port agrees, call the port with other sizes and with the user's long prompts."""
    arguments, probes, reached = evidence.arguments, evidence.ran.probes.values(), evidence.reached
    if not evidence.agrees():
        leave_out(arguments.long, reached)
        evidence.add(coverage=coverage_of(probes), not_compared=(*reached.refused, *reached.failed))
        return
    first, parameters = evidence.first, arguments.parameters
    if arguments.preset is not None and arguments.config is None:
        models = reach_of_preset(arguments.preset)
    else:
        accepts = accepted_by(model_type_of(evidence.port))
        models = reach_of(first.config, first.parameters, is_drawn=parameters is None, accepts=accepts)
        models += _given_a_mask(evidence)
    models = models if parameters is None else (*models, every_token(first.config, parameters))
    reach(evidence, models)
    call_long(evidence)
    unseen = [] if parameters is None else unseen_tokens(first.config, [*probes, *reached.probes])
    if reached.wrong:
        _add_wrong_calls(evidence)
    else:
        _add_coverage(evidence, first.config, [*probes, *reached.probes])
    evidence.add(not_compared=unseen)


def leave_out_all(evidence: Evidence) -> None:
    coverage = dataclasses.replace(coverage_of(evidence.ran.probes.values()), untested=(QUICK,))
    verdict = "inconclusive" if evidence.agrees() else evidence.report.verdict
    evidence.add(coverage=coverage, verdict=verdict)


def _given_a_mask(evidence: Evidence) -> tuple[ReachModel, ...]:
    """Return a model for calls with an attention mask; return () if the loaded model takes no mask."""
    model = masked_model(evidence.first.config, evidence.first.parameters)
    if model is None or not is_loader(evidence.port):
        return ()
    signature = signature_of(evidence.ran.forward)
    if signature is None or "attention_mask" not in signature.parameters:
        evidence.reached.refused.append("attention_mask: the signature of the loaded model has no such argument")
        return ()
    return (model,)


def reach(evidence: Evidence, models: Sequence[ReachModel]) -> None:
    reached = evidence.reached
    calls = sum(len(model.calls) for model in models)
    for model in models:
        function: Callable[..., Any] | None = evidence.ran.forward
        if not model.is_asked:
            function = build_model(evidence.build, model.probes[0], f"{model.name} model", reached, is_derived=True)
        if function is None:
            continue
        reached.forwards[id(model.parameters)] = function
        for number, probe in enumerate(model.probes):
            evidence.progress("calling the port at other sizes", len(reached.compared), calls)
            if reached.seconds > SECONDS_OF_A_PORT and number >= WITHOUT_LIMIT:
                reached.left_out.append(probe)
            elif not _compared(evidence, function, probe):
                break
        _bisect(evidence, function, model)
    if reached.wrong:
        probe = reached.wrong[0].probe
        with contextlib.suppress(PortError):  # if a new object also raises, state is not the cause
            alone = run(built(evidence.build, probe), probe, logits_only=True)
            reached.is_history = not compare(probe, alone["logits"], evidence.arguments.dtype).is_wrong


def _compared(evidence: Evidence, function: Callable[..., Any], probe: ReachProbe) -> bool:
    arguments, reached = evidence.arguments, evidence.reached
    asked = evidence.first.config.max_length if arguments.config is not None else LONGEST_THRESHOLD
    is_derived, may_refuse = not probe.model.is_asked, max(probe.lengths) > asked
    taps = call_model(function, probe, reached, is_derived, logits_only=True, may_refuse=may_refuse)
    if taps is not None:
        reached.compared.append(compare(probe, taps["logits"], arguments.dtype))
        probe.oracle.release()
    return taps is not None


def _bisect(evidence: Evidence, function: Callable[..., Any], model: ReachModel) -> None:
    sides, reached = len(model.config.input_names), evidence.reached

    def call(length: int) -> bool | None:
        answered = _compared(evidence, function, model.probe(1, (length,) * sides))
        return reached.compared[-1].is_wrong if answered else None

    bisect([each.call for each in reached.compared if each.probe.model is model], call)


def compare(probe: ReachProbe, logits: np.ndarray, dtype: str) -> Comparison:
    """Compare logits. If the error is slightly too large, measure rounding again with sequential sums."""
    with np.errstate(all="ignore"):
        expected, budget = probe.oracle.expected["logits"], probe.budget(dtype)
        is_masked = "attention_mask" in probe.inputs and probe.config.architecture == "decoder"
        if is_masked and logits.shape == expected.shape:  # queries in left padding see no key
            logits = np.where(sees_something(probe.config, probe.inputs)[..., None], logits, expected)
        error = difference(logits, expected)
        if 1 < share(error, budget) < REMEASURED_WITHIN[dtype]:
            budget = probe.budget(dtype, in_sequence=True)
        wrong = share(error, budget) > 1 and logits.shape == expected.shape
        return Comparison(probe, error, budget, error_profile(logits, expected) if wrong else {})


def _add_wrong_calls(evidence: Evidence) -> None:
    reached = evidence.reached
    first = reached.wrong[0]
    fault = Divergence(
        "logits",
        first.error,
        first.budget,
        (Cause("history", HISTORY, explained=0.0),) if reached.is_history else (),
        probe=first.probe.name,
        profile=dict(first.profile),
        is_misshapen=first.error == np.inf and not first.profile,
    )
    evidence.add(
        fault,
        claims=[_claim(LONG if isinstance(first.probe, LongProbe) else CLAIM, reached.wrong)],
        not_compared=(*reached.refused, *reached.failed),
        notes=(boundary([each.call for each in (*reached.wrong, *reached.right)], first.probe.config), *reached.notes),
        coverage=coverage_of([*evidence.ran.probes.values(), *reached.probes]),
    )


def _claim(name: str, compared: Iterable[Comparison]) -> ClaimResult:
    worst = max(compared, key=lambda each: each.share)
    return ClaimResult.of(name, worst.error, worst.budget, f"logits ({worst.probe.name})")


def _add_coverage(evidence: Evidence, config: TransformerConfig, probes: Sequence[Probe]) -> None:
    reached = evidence.reached
    evidence.report = covered(evidence.report, config, probes, reached.failed)
    if not evidence.agrees():
        return
    long = [each for each in reached.compared if isinstance(each.probe, LongProbe)]
    others = [each for each in reached.compared if each not in long]
    missing = list(reached.refused)
    if reached.left_out:
        lengths = sorted({max(probe.lengths) for probe in reached.left_out})
        listed = ", ".join(map(str, lengths[:12])) + (", …" if lengths[12:] else "")
        calls = count(len(reached.left_out), "call")
        missing.append(f"{calls} of length {listed}: left out, because the port is slow")
    claims = [_claim(name, compared) for name, compared in ((CLAIM, others), (LONG, long)) if compared]
    evidence.add(claims=claims, not_compared=missing)


def call_long(evidence: Evidence) -> None:
    """Call a port with long prompts until a result is wrong. If `has_prefixes`, find the shortest wrong prompt."""
    probes, reached, progress = evidence.arguments.long, evidence.reached, evidence.progress
    for number, probe in enumerate(probes):
        if reached.wrong:
            leave_out(probes[number:], reached)
            return
        progress("calling the port with long prompts", number, len(probes))
        errors = _errors(evidence, probe)
        progress("measuring rounding for long prompts", number, len(probes))
        found = _comparison(probe, errors, evidence.arguments.dtype)
        reached.compared.append(found)
        if errors is not None and found.is_wrong:
            wrong = np.flatnonzero(~(errors <= found.budget))
            says = f"only position {wrong[0]:,} is wrong"
            if len(wrong) > 1:
                says = f"{len(wrong):,} of {len(errors):,} positions are wrong, from position {wrong[0]:,} on"
            reached.notes.append(f"{probe.name}: {says}")
            if has_prefixes(probe.config):
                _shorten(evidence, probe, errors)
            if not can_be_walked(shortest := reached.wrong[0].probe):
                reached.notes.append(f"{shortest.name}: not searched for causes, because it is too large")


def leave_out(probes: Sequence[LongProbe], reached: ReachedCalls) -> None:
    reached.refused.extend(f"{probe.name}: not compared, because shorter prompts do not agree" for probe in probes)


def can_be_walked(probe: Probe) -> bool:
    """Return whether a search for causes is possible. A long prompt must have at most `LONGEST` tokens, and its
    activations must fit in memory."""
    if not isinstance(probe, LongProbe):
        return True
    length = max(probe.lengths)
    taps = tap_shapes(probe.config, 1, **dict.fromkeys(probe.config.input_names, length))
    needed = sum(map(math.prod, taps.values())) * BYTES_OF_AN_ACTIVATION
    return length <= LONGEST and needed <= available_memory()


def _errors(evidence: Evidence, probe: LongProbe) -> np.ndarray | None:
    taps = call_model(evidence.ran.forward, probe, evidence.reached, False, logits_only=True)
    assert taps is not None  # at a requested length, a failure raises
    logits = taps["logits"]
    return probe.oracle.errors(logits) if logits.shape == probe.oracle.shape else None


def _comparison(probe: LongProbe, errors: np.ndarray | None, dtype: str) -> Comparison:
    budget = probe.budget(dtype)
    if errors is None:
        return Comparison(probe, np.inf, budget, {})
    error = float(errors.max())
    is_shown = share(error, budget) > 1 and len(errors) <= LONGEST
    return Comparison(probe, error, budget, {"row": [error]} | ({"position": errors.tolist()} if is_shown else {}))


def _shorten(evidence: Evidence, probe: LongProbe, errors: np.ndarray) -> None:
    """Find the shortest wrong prompt. Try the prompt up to the first wrong position; if the port is right, bisect."""
    dtype, wrong = evidence.arguments.dtype, len(errors)

    def call(length: int) -> bool:
        part = probe.prefix(length)
        found = _comparison(part, _errors(evidence, part), dtype)
        evidence.reached.compared.append(found)
        return found.is_wrong

    first = 1 + int(np.argmax(~(errors <= probe.budget(dtype))))
    if first < wrong and not call(first):
        bisect([Call(probe.name, first, is_wrong=False), Call(probe.name, wrong, is_wrong=True)], call)
