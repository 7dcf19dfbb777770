"""All that a port offers besides its forward pass, and its histories, beside the verdict on the forward pass."""

from __future__ import annotations

from collections.abc import Sequence

from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass, first_of
from transparity_conformance.capabilities.compare import compare_capabilities, compare_capability
from transparity_conformance.capabilities.decoding.generation import what_is_generated
from transparity_conformance.capabilities.table import ATTRIBUTES, OF_GIVEN, offered_by
from transparity_conformance.checking.histories import compare_history
from transparity_conformance.checking.reach.calls import Ran
from transparity_conformance.oracle.probes import single_row
from transparity_conformance.report.capability_result import CapabilityResult, not_compared, with_capabilities
from transparity_conformance.report.report import Report, known_so_far
from transparity_conformance.running.process.running import Port, is_loader, run, sharding_of

OF_A_CHECKPOINT = "of what load(folder) returns, gradients are compared with a checkpoint's weights, by --checkpoint"

NOT_OF_GIVEN = "{}: of given parameters it is not compared; with drawn ones it is, by --config"


def with_everything_offered(
    report: Report, build: Port, ran: Ran, left_out: Sequence[str], *, is_drawn: bool
) -> Report:
    """Add the capabilities and the histories of a port to the report on its forward pass.

    Args:
        ran: the answers to the probes.
        left_out: lines on the probes that were not made.
        is_drawn: whether the parameters were drawn; of given ones what is `OF_GIVEN` is compared.
    """
    first = next(iter(ran.probes.values()))
    sharing = {key: probe for key, probe in ran.probes.items() if probe.parameters is first.parameters}
    logits = {key: taps["logits"] for key, taps in ran.actual.items()}
    if not first.is_large:
        sharing["single"] = single_row(first)
        logits["single"] = run(ran.forward, sharing["single"], logits_only=True)["logits"]
    port = BuiltPort(build, ran.forward, {(first.config, id(first.parameters)): (first.parameters, ran.forward)})
    passed = ForwardPass(sharing, logits, report.dtype, sharding_of(ran.forward))
    with known_so_far(report.verdict, report.first_divergence):
        if is_drawn:
            report = with_capabilities(report, not_compared(*left_out))
            return _with_capabilities(report, port, passed)
        found = _of_given(port, passed, is_right=report.verdict == "agrees")
        return with_capabilities(
            report, found + compare_history(port, passed, found, OF_GIVEN) if report.verdict == "agrees" else found
        )


def _of_given(port: BuiltPort, forward: ForwardPass, *, is_right: bool) -> CapabilityResult:
    """The capabilities that need no parameters of their own; the others are listed."""
    offered = {row.attribute for row in offered_by(port.forward)}
    missing = [name for name in ATTRIBUTES if name not in offered]
    others = offered - {row.attribute for row in OF_GIVEN}
    found = not_compared(*(f"{name}: the port does not offer it" for name in missing))
    found += not_compared(*(NOT_OF_GIVEN.format(name) for name in others))
    for row in (row for row in OF_GIVEN if row.attribute in offered):
        found += compare_capability(row, port, forward, is_right=is_right)
    if any(claim.id == "generate" for claim in found.claims):
        found += not_compared(what_is_generated(first_of(forward.probes)[1]))
    return found


def _with_capabilities(report: Report, port: BuiltPort, forward: ForwardPass) -> Report:
    causes = [cause for fault in report.faults for cause in fault.causes]
    if [cause.mistake for cause in causes] == ["low-precision"]:  # then so is all that it offers
        says = f"the port's forward pass is off by {causes[0].says}, and all that it offers with it"
        return with_capabilities(
            report, not_compared(*(f"{row.attribute}: {says}" for row in offered_by(port.forward)))
        )
    is_right = report.verdict == "agrees"
    left_out = {"gradients": OF_A_CHECKPOINT} if is_loader(port.build) else {}
    found = compare_capabilities(port, forward, is_right=is_right, left_out=left_out)
    return with_capabilities(report, found + compare_history(port, forward, found) if is_right else found)
