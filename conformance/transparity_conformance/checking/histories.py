"""Histories: one built port goes through many calls, and has to answer as a fresh one does.

A port that keeps state between calls (a cache that is not reset, gradients that add up, dropout switched on by a
training, a counter) answers the first calls well. So forward passes on tokens that come back are mixed, by a seeded
draw, with everything else that the port offers, and every answer is compared as the first was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance.capabilities.capability import BuiltPort, Capability, ForwardPass, Way
from transparity_conformance.capabilities.stranger import PortError, PortProcessError, call_stranger
from transparity_conformance.capabilities.table import CAPABILITIES, offered_by
from transparity_conformance.oracle.probes import Probe, mixed_inputs, twin
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence
from transparity_conformance.running.process.running import run

CALLS = 120
"""Forward passes of a history: if all are right, at most one call in 40 is wrong, at 95 % (1 − 0.05^(1/n) is 2.5 %)."""

CALLS_OF_LARGE = 2
"""The same for a model whose every forward pass takes long."""

CLAIM = "histories"


@dataclass(frozen=True)
class _Asked:
    """A capability in one way, and the requests that a port has answered well."""

    row: Capability
    way: Way
    requests: Mapping[str, Any]
    wrong: frozenset[str]
    """What is wrong at first, too."""


def compare_history(
    port: BuiltPort, forward: ForwardPass, first: CapabilityResult, rows: Collection[Capability] = ()
) -> CapabilityResult:
    """Call one object many times, and compare every answer.

    Args:
        port: the port, which has answered every probe and request once.
        forward: its first logits, which agree.
        first: the result of its capabilities; those that agree are asked again.
        rows: the capabilities as they were compared; without them, those of the table.
    """
    random = np.random.default_rng(0)
    is_large = any(probe.is_large for probe in forward.probes.values())
    asked = [] if is_large else _asked(port, forward, first, rows or CAPABILITIES.values())
    forward = forward if is_large else _with_twin(forward)
    keys = sorted(forward.probes)
    order: list[Any] = [keys[index] for index in random.integers(len(keys), size=CALLS_OF_LARGE if is_large else CALLS)]
    for each in asked:
        order.insert(int(random.integers(1, len(order))), each)
    return _afterwards(port, forward) or _followed(port, forward, order)


def _afterwards(port: BuiltPort, forward: ForwardPass) -> CapabilityResult | None:
    """The result of the forward passes of ports that have been trained or have generated, if one is wrong."""
    for (config, _), (parameters, built) in port.built.items():
        inputs = mixed_inputs(config, 0, min(5, config.max_length), min(4, config.max_length))
        probe = Probe("history", "afterwards", "a model after its use", config, parameters, inputs)
        error = _error(built, probe, probe.oracle.expected["logits"])
        budget = probe.oracle.budget("logits", forward.dtype)
        if share(error, budget) > 1:
            return _diverges(error, budget, probe.name, probe, "a model that was trained or has generated differs")
    return None


def _with_twin(forward: ForwardPass) -> ForwardPass:
    """`forward` and the twin of its first probe, whose answer a port with a careless cache would take for its own."""
    added = twin(next(iter(forward.probes.values())))
    logits = added.oracle.expected["logits"]
    logits_of = {**forward.logits, added.name: logits}
    return dataclasses.replace(forward, probes={**forward.probes, added.name: added}, logits=logits_of)


def _asked(
    port: BuiltPort, forward: ForwardPass, first: CapabilityResult, rows: Collection[Capability]
) -> list[_Asked]:
    agreeing = {claim.id for claim in first.claims if claim.verdict == "agrees"}
    offered = {row.attribute for row in offered_by(port.forward)}
    ways = ((row, way) for row in rows if row.attribute in offered for way in row.ways if way.claim in agreeing)
    comparable = ((row, way, way.all_requests(forward)) for row, way in ways)
    wrong = frozenset(fault.where for fault in first.faults)
    return [_Asked(row, way, requests, wrong) for row, way, requests in comparable if requests]


def _followed(port: BuiltPort, forward: ForwardPass, order: list[Any]) -> CapabilityResult:
    """Follow the order of calls, and end with the first wrong answer."""
    worst, calls, after = ClaimResult(CLAIM, "agrees", 0.0, 0.0, "logits"), 0, ""
    for each in order:
        if isinstance(each, _Asked):
            after = each.row.attribute
            if wrong := _asked_again(port, forward, each):
                return wrong
            continue
        calls += 1
        probe = forward.probes[each]
        error, budget = _error(port.forward, probe, forward.logits[each]), probe.oracle.budget("logits", forward.dtype)
        if share(error, budget) > 1:
            says = f"call {calls + 1} of one object differs from the first on the same tokens"
            says += f", after {after}" if after else ""
            return _diverges(error, budget, f"call {calls} ({probe.name})", probe, says)
        if share(error, budget) > share(worst.error, worst.budget):
            worst = ClaimResult(CLAIM, "agrees", error, budget, f"call {calls} ({probe.name})")
    return CapabilityResult((worst,), calls=calls)


def _error(function: Callable[..., Any], probe: Probe, expected: np.ndarray) -> float:
    """The largest difference of the logits from those expected; infinite if the port fails now."""
    try:
        return judged_gap(probe, "logits", run(function, probe, logits_only=True)["logits"], expected)
    except PortProcessError:
        raise
    except PortError:
        return np.inf


def _diverges(error: float, budget: float, where: str, probe: Probe, says: str) -> CapabilityResult:
    cause = Cause("history", f"{says}: something is kept between calls", None, 0.0, 1.0)
    claim = ClaimResult(CLAIM, "diverges", error, budget, where)
    return CapabilityResult((claim,), (Divergence("logits", error, budget, (cause,), probe=probe.name),))


def _asked_again(port: BuiltPort, forward: ForwardPass, asked: _Asked) -> CapabilityResult | None:
    """The result of asking the same object again, if it is wrong now."""
    answers: dict[str, Any] = {}
    where = asked.way.claim
    says = "right at first, and wrong when the same object is asked again: something is kept between calls"
    cause = Cause("history", says, None, 0.0, 1.0)
    try:
        for key, request in asked.requests.items():
            answers |= call_stranger(asked.row.ask, port, asked.way, key, request)
    except PortProcessError:
        raise
    except PortError:
        claim = ClaimResult(CLAIM, "diverges", np.inf, 0.0, where)
        return CapabilityResult((claim,), (Divergence(where, np.inf, 0.0, (cause,)),))
    found = asked.row.judge(asked.way, asked.requests, answers, forward).faults
    for fault in (each for each in found if each.where not in asked.wrong):
        claim = ClaimResult(CLAIM, "diverges", fault.error, fault.budget, fault.where)
        return CapabilityResult((claim,), (dataclasses.replace(fault, causes=(cause,), indistinguishable=()),))
    return None
