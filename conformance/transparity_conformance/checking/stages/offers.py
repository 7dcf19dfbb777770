"""The stage that compares the capabilities of a port, and then calls one object many times.

In these repeated calls (a history), each result must equal the result of a new object. State that a port keeps between
calls can make later results wrong. Examples are a cache that is not reset, gradients that accumulate, and dropout that
stays on after training. A history therefore mixes forward passes with all other capabilities, in random order.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.capability import BuiltPort, Capability, ForwardPass, Requests, Way
from transparity_conformance.capabilities.port_calls import PortError, call_port, has_method, signature_of
from transparity_conformance.capabilities.table import CAPABILITIES, OF_GIVEN, compare_capabilities, offered_by
from transparity_conformance.checking.calls import answer_or_error
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.diagnosis.reach.coverage import CALLS
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probes_left_out, single_row, twin
from transparity_conformance.oracle.reach.models import GIVEN_A_MASK, ReachProbe
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import SHARE
from transparity_conformance.report.report import (
    CapabilityResult,
    Cause,
    ClaimResult,
    Divergence,
    Report,
    Verdict,
    known_so_far,
    not_compared,
    with_capabilities,
)
from transparity_conformance.running.process.running import is_loader, run, sharding_of

OF_A_CHECKPOINT = """not compared, because the model is loaded from a folder with random weights; a check with \
--checkpoint compares gradients"""

OF_GIVEN_PARAMETERS = """not compared, because the parameters were given; a check with random parameters, such as \
--family NAME or --config FILE, compares this method"""

CALLS_OF_LARGE = 2
"""The number of forward passes in the history of a large model."""

CLAIM = "histories"


def compare_offers(evidence: Evidence) -> None:
    """Compare the capabilities. If the port agrees, also compare a history: many calls of one object."""
    ran, arguments, report = evidence.ran, evidence.arguments, evidence.report
    first, is_drawn = evidence.first, arguments.parameters is None
    sharing = {key: probe for key, probe in ran.probes.items() if probe.parameters is first.parameters}
    logits = {key: taps["logits"] for key, taps in ran.actual.items()}
    if not first.is_large:
        sharing["single"] = single_row(first)
        logits["single"] = run(ran.forward, sharing["single"], logits_only=True)["logits"]
    port = BuiltPort(
        evidence.build,
        ran.forward,
        {(first.config, id(first.parameters)): (first.parameters, ran.forward)},
        evidence.reached.forwards,
    )
    reached, unmasked = _without_masks([each.probe for each in evidence.reached.right], ran.forward)
    passed = ForwardPass(sharing, logits, report.dtype, sharding_of(ran.forward), reached)
    with known_so_far(report.verdict, report.first_divergence):
        if is_drawn:
            left_out = not_compared(*probes_left_out(first.config, arguments.probes, arguments.dtype))
            evidence.report = with_capabilities(report, left_out)
            found = _of_drawn(report, port, passed)
        else:
            found = _of_given(port, passed, report.verdict)
        if evidence.agrees():
            found += compare_history(port, passed, found, () if is_drawn else OF_GIVEN)
        evidence.report = with_capabilities(evidence.report, found + unmasked)


def _without_masks(reached: list[ReachProbe], forward: Any) -> tuple[list[ReachProbe], CapabilityResult]:
    """If the port's `step` has no argument `attention_mask`, leave out the calls with a mask."""
    masked = [probe for probe in reached if probe.model.name == GIVEN_A_MASK]
    signature = signature_of(forward.step) if masked and has_method(forward, "step") else None
    if signature is None or "attention_mask" in signature.parameters:
        return reached, CapabilityResult()
    says = "step: not compared with padding, because the method has no argument attention_mask"
    return [probe for probe in reached if probe not in masked], not_compared(says)


def _of_drawn(report: Report, port: BuiltPort, forward: ForwardPass) -> CapabilityResult:
    """Compare all capabilities; compare none if the forward pass only has a lower precision than declared."""
    causes = [cause for fault in report.faults for cause in fault.causes]
    if [cause.mistake for cause in causes] == ["low-precision"]:
        says = f"not compared, because a known fault of the forward pass affects this method: {causes[0].says}"
        return not_compared(*(f"{row.attribute}: {says}" for row in offered_by(port.forward)))
    left_out = {"loss_and_gradients": OF_A_CHECKPOINT} if is_loader(port.build) else {}
    return compare_capabilities(port, forward, CAPABILITIES.values(), left_out, report.verdict)


def _of_given(port: BuiltPort, forward: ForwardPass, verdict: Verdict) -> CapabilityResult:
    others = {row.attribute for row in offered_by(port.forward)} - {row.attribute for row in OF_GIVEN}
    left_out = dict.fromkeys(others, OF_GIVEN_PARAMETERS)
    found = compare_capabilities(port, forward, OF_GIVEN, left_out, verdict)
    if any(claim.id == "generate" for claim in found.claims):
        says = "with your parameters, only greedy decoding is compared"
        found += not_compared(f"generate: {says}, not sampling or prompts of different lengths")
    return found


def compare_history(
    port: BuiltPort, forward: ForwardPass, first: CapabilityResult, rows: Collection[Capability] = ()
) -> CapabilityResult:
    """Call one object many times. Compare forward passes with the logits in `forward`, and repeat the requests of the
    capabilities that agreed in `first`. `rows` are the capabilities that were compared; empty means all."""
    is_large = any(probe.is_large for probe in forward.probes.values())
    requests = [] if is_large else _requests(port, forward, first, rows or CAPABILITIES.values())
    count = CALLS_OF_LARGE if is_large else CALLS
    if not is_large:  # other tokens of the same shape detect results that a port caches by shape
        added = twin(next(iter(forward.probes.values())))
        logits = {**forward.logits, added.name: added.oracle.expected["logits"]}
        forward = dataclasses.replace(forward, probes={**forward.probes, added.name: added}, logits=logits)
    worst = ClaimResult(CLAIM, "agrees", 0.0, 0.0, "logits")
    for number, (says, fault) in enumerate(_calls(port, forward, requests, count)):
        where = f"call {number} ({fault.probe})" if fault.where == "logits" else fault.where
        claim = ClaimResult.of(CLAIM, fault.error, fault.budget, where)
        if claim.verdict == "diverges":
            cause = Cause("history", f"{says}: the port keeps state between calls", explained=0.0)
            return CapabilityResult((claim,), (dataclasses.replace(fault, causes=(cause,), indistinguishable=()),))
        worst = max(worst, claim, key=SHARE)
    return CapabilityResult((worst,), calls=count)


Again = Callable[[], Divergence]
"""A function that repeats the requests of a claim. The function returns a new fault or, if there is none, a divergence
with the error 0."""


def _requests(
    port: BuiltPort, forward: ForwardPass, first: CapabilityResult, rows: Collection[Capability]
) -> list[tuple[str, Again]]:
    """Return, for each claim that agreed, the port's method, and a function that repeats the claim's requests."""
    agreeing = {claim.id for claim in first.claims if claim.verdict == "agrees"}
    offered = {row.attribute for row in offered_by(port.forward)}
    short = dataclasses.replace(forward, reached=())  # do not repeat calls of other sizes
    known = {fault.where for fault in first.faults}
    return [
        (row.attribute, functools.partial(_ask_again, port, forward, row, way, requests, known))
        for row in rows
        if row.attribute in offered
        for way in row.ways
        if way.claim in agreeing and (requests := way.all_requests(short))
    ]


def _calls(
    port: BuiltPort, forward: ForwardPass, requests: Sequence[tuple[str, Again]], count: int
) -> Iterator[tuple[str, Divergence]]:
    """Make the calls of a history; for each call, yield the message for a wrong result, and the error."""
    for (config, _), (parameters, built) in port.built.items():
        inputs = mixed_inputs(config, 0, min(5, config.max_length), min(4, config.max_length))
        probe = Probe("history", "afterwards", "a model after training or generation", config, parameters, inputs)
        found = _logits(built, probe, probe.oracle.expected["logits"], forward.dtype)
        yield "the forward pass changes after training or generation", found
    random, keys, after = np.random.default_rng(0), sorted(forward.probes), ""
    order: list[Any] = [keys[index] for index in random.integers(len(keys), size=count)]
    for each in requests:
        order.insert(int(random.integers(1, len(order))), each)
    for each in order:
        if isinstance(each, str):
            says = f"a later call of the same model has a wrong result ({forward.probes[each].name}{after})"
            yield says, _logits(port.forward, forward.probes[each], forward.logits[each], forward.dtype)
        else:
            after = f", after {each[0]}"
            yield "the first result is right, but a later result of the same model is wrong", each[1]()


def _logits(function: Callable[..., Any], probe: Probe, expected: np.ndarray, dtype: str) -> Divergence:
    answer = answer_or_error(lambda: run(function, probe, logits_only=True)["logits"])
    error = np.inf if isinstance(answer, PortError) else judged_gap(probe, "logits", answer, expected)
    return Divergence("logits", error, probe.oracle.budget("logits", dtype), (), probe=probe.name)


def _ask_again(
    port: BuiltPort, forward: ForwardPass, row: Capability, way: Way, requests: Requests, known: Collection[str]
) -> Divergence:
    answers: dict[str, Any] = {}
    for key, request in requests.items():
        answer = answer_or_error(functools.partial(call_port, row.ask, port, way, key, request))
        if isinstance(answer, PortError):
            return Divergence(way.claim, np.inf, 0.0, ())
        answers |= answer
    found = row.judge(way, requests, answers, forward).faults
    return next((fault for fault in found if fault.where not in known), Divergence(way.claim, 0.0, 0.0, ()))
