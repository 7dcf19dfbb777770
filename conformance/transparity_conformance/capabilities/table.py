"""The table of all capabilities: what a port may do besides its forward pass, such as generation."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from transparity_conformance.capabilities.capability import BuiltPort, Capability, ForwardPass, Way
from transparity_conformance.capabilities.decoding.generation import (
    BEAMS,
    BEAMS_OF_GIVEN,
    GENERATION,
    GENERATION_OF_GIVEN,
)
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.learning.gradients import GRADIENTS, GRADIENTS_OF_GIVEN
from transparity_conformance.capabilities.learning.loss import LOSS
from transparity_conformance.capabilities.learning.training import TRAINING
from transparity_conformance.capabilities.other_logits import ADAPTERS, PACKED
from transparity_conformance.capabilities.port_calls import (
    PortCallError,
    PortError,
    PortProcessError,
    call_port,
    has_method,
    signature_of,
)
from transparity_conformance.capabilities.resized import RESIZED
from transparity_conformance.oracle.probes import LONGEST
from transparity_conformance.report.report import (
    CapabilityResult,
    Cause,
    ClaimResult,
    Divergence,
    Verdict,
    not_compared,
)

CAPABILITIES = {
    row.name: row for row in (LOSS, GRADIENTS, GENERATION, BEAMS, STEPS, TRAINING, PACKED, ADAPTERS, RESIZED)
}

OF_GIVEN = (LOSS, GRADIENTS_OF_GIVEN, GENERATION_OF_GIVEN, BEAMS_OF_GIVEN, STEPS)
"""The capabilities to check with given parameters, such as the weights of a checkpoint."""

ATTRIBUTES = tuple(row.attribute for row in CAPABILITIES.values())


def offered_by(forward: object) -> list[Capability]:
    return [row for row in CAPABILITIES.values() if has_method(forward, row.attribute)]


def compare_capabilities(
    port: BuiltPort, forward: ForwardPass, rows: Iterable[Capability], left_out: Mapping[str, str], verdict: Verdict
) -> CapabilityResult:
    """Compare the capabilities in `rows` that a port has. `left_out` gives the reason for each method that is not
    compared. `verdict` is the verdict on the forward pass."""
    offered = {row.attribute for row in offered_by(port.forward)}
    config = forward.first.config
    missing = [
        row.attribute
        for row in CAPABILITIES.values()
        if row.applies(config) and row.attribute not in offered | left_out.keys()
    ]
    found = not_compared(*(f"{name}: the port has no such method" for name in missing))
    found += not_compared(*(f"{name}: {why}" for name, why in left_out.items()))
    for row in (row for row in rows if row.attribute in offered - left_out.keys()):
        found += compare_capability(row, port, forward, verdict)
    return found


def compare_capability(
    row: Capability, port: BuiltPort, forward: ForwardPass, verdict: Verdict = "agrees"
) -> CapabilityResult:
    probe, length = forward.first, forward.first.config.max_length
    if reason := row.reason(probe, forward.dtype) or row.after(verdict):
        return not_compared(f"{row.attribute}: {reason}")
    far = row.is_long and length > LONGEST
    too_far = f"{row.attribute}: calls longer than max_length ({length:,} tokens) would take too long"
    found = not_compared(*[too_far] * far)
    for way in row.ways:
        verdicts = {claim.id: claim.verdict for claim in found.claims}
        not_taken = _not_taken(port.forward, row, way)
        if not_taken and way.is_optional and (not way.is_listed or way.why_not(probe, forward.dtype)):
            continue
        reason = not_taken or why_not(way, forward, verdicts)
        found += not_compared(f"{way.claim}: {reason}") if reason else _compare_way(row, way, port, forward)
    return found


def why_not(way: Way, forward: ForwardPass, verdicts: Mapping[str, Verdict]) -> str:
    if way.requires and verdicts.get(way.requires) != "agrees":
        return "this claim depends on greedy generation, which does not agree"
    if way.is_optional and any(verdict == "diverges" and "." not in claim for claim, verdict in verdicts.items()):
        return "the result without this option is wrong"
    return way.why_not(forward.first, forward.dtype)


def _not_taken(forward: Any, row: Capability, way: Way) -> str:
    try:
        signature = signature_of(call_port(getattr, forward, row.attribute))
    except PortCallError:
        signature = None
    taken = {} if signature is None else signature.parameters
    takes_any = signature is None or any(each.kind is each.VAR_KEYWORD for each in taken.values())
    missing = [keyword for keyword in way.keywords if keyword not in taken]
    if not missing or (takes_any and not way.is_optional):  # only a call shows whether the argument is accepted
        return ""
    return f"the port's method {row.attribute} has no argument {' or '.join(missing)}"


def _compare_way(row: Capability, way: Way, port: BuiltPort, forward: ForwardPass) -> CapabilityResult:
    requests = way.all_requests(forward)
    answers: dict[str, Any] = {}
    for key, request in requests.items():
        try:
            answers |= call_port(row.ask, port, way, key, request)
        except PortProcessError:
            raise
        except PortError as error:
            return failed(way.claim, key, error)
    found, reach = row.judge(way, requests, answers, forward), row.reach(requests)
    claims = tuple(dataclasses.replace(claim, reach=reach) for claim in found.claims)
    return dataclasses.replace(found, claims=claims)


def failed(claim: str, key: str, error: PortError) -> CapabilityResult:
    cause = Cause("raises", f"it raised {error}")
    result = ClaimResult(claim, "diverges", math.inf, 0.0, key)
    return CapabilityResult((result,), (Divergence(claim, math.inf, 0.0, (cause,), probe=key),))
