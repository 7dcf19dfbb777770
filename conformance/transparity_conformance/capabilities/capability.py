"""Capabilities of a port besides its forward pass: the types of the table."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.sharding import ALONE, Sharding
from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.reach.models import ReachProbe
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence

Build = Callable[[TransformerConfig, Arrays], Any]

Probes = Mapping[str, Probe]
"""Probes of one model; the first one is used where one is enough."""

Requests = Mapping[str, Any]
"""Requests by the prefix of their tensors' names; each request has a `name` for messages."""

Answers = Mapping[str, np.ndarray]
"""A port's answers as tensors, by their names in a bundle."""

Shapes = dict[str, tuple[int, ...]]

P = ParamSpec("P")
R = TypeVar("R")


def kept_in(position: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function in its argument at `position`, and so for that argument's lifetime.

    A global cache would keep every model alive. The results must not refer to the argument: such cycles wait for the
    garbage collector, which ignores the memory of arrays.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def cached(*args: P.args, **named: P.kwargs) -> R:
            results = vars(args[position]).setdefault("_results", {})
            others = [value for index, value in enumerate(args) if index != position % len(args)]
            key = (function, *others, *sorted(named.items()))
            if key not in results:
                results[key] = function(*args, **named)
            kept: R = results[key]
            return kept

        return cached

    return decorate


def first_of(probes: Probes) -> tuple[str, Probe]:
    """Return the name of the first probe, and the probe."""
    return next(iter(probes.items()))


@dataclass(frozen=True)
class BuiltPort:
    """A port in this process."""

    build: Build
    """Builds another port with other parameters."""
    forward: Any
    built: dict[tuple[TransformerConfig, int], tuple[Arrays, Any]] = field(default_factory=dict)
    """Parameters and the ports built with them, by configuration and identity of the parameters."""
    of_reached: Mapping[int, Any] = field(default_factory=dict)
    """The ports called at other sizes, by the identity of their parameters."""

    def built_for(self, config: TransformerConfig, parameters: Arrays) -> Any:
        """Return the port built with a copy of other parameters; repeated requests return the same object."""
        if id(parameters) in self.of_reached:
            return self.of_reached[id(parameters)]
        key = config, id(parameters)  # one model may have several end tokens
        if key not in self.built:  # the parameters are kept, so that no others can have their identity
            copies = {name: value.copy() for name, value in parameters.items()}
            self.built[key] = parameters, self.build(config, copies)
        return self.built[key][-1]


@dataclass(frozen=True)
class ForwardPass:
    """A port's forward pass, the basis for judging capabilities."""

    probes: Probes
    logits: Answers
    """The logits of each probe."""
    dtype: str
    sharding: Sharding = ALONE
    """The ranks of the port."""
    reached: Sequence[ReachProbe] = ()
    """The calls at other sizes that agree."""


@dataclass(frozen=True)
class Judged:
    """The error of an answer, its budget, its place, and ties within rounding."""

    error: float
    budget: float
    where: str
    near: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Return the error relative to its budget."""
        return share(self.error, self.budget)


def result(
    claim: str,
    worst: Judged,
    explain: Callable[[], Sequence[Cause]],
    *,
    probe: str = "",
    notes: tuple[str, ...] = (),
) -> CapabilityResult:
    """Return the result of one claim, represented by its worst answer.

    Args:
        claim, worst: The claim, and the error with the largest share of its budget.
        explain: Called if the error is too large; returns all equally good causes, the likeliest first.
        probe, notes: The probe with the error; notes for the report.
    """
    agrees = worst.share <= 1
    claims = (ClaimResult(claim, "agrees" if agrees else "diverges", worst.error, worst.budget, worst.where),)
    if agrees:
        return CapabilityResult(claims, notes=notes)
    causes = explain()
    others = dict.fromkeys(cause.mistake for cause in causes if cause.mistake != causes[0].mistake)
    fault = Divergence(claim, worst.error, worst.budget, tuple(causes[:1]), tuple(others), probe=probe)
    return CapabilityResult(claims, (fault,), notes=notes)


def cause_of(fault: SimulatedFault, error: float, left: float = 0.0) -> Cause:
    """Return the cause of an error; the fault leaves `left`."""
    return Cause(fault.id, fault.says, None, left, 1 - left / error)


def _never(*_: Any) -> str:
    return ""


@dataclass(frozen=True)
class Way:
    """One way to use a capability; each is one claim of the report."""

    claim: str
    requests: Callable[[Probes], Requests]
    faults: Sequence[SimulatedFault] = ()
    """Faults that could explain a wrong answer, the likeliest first."""
    keywords: tuple[str, ...] = ()
    """Keywords that the port's method must accept."""
    requires: str = ""
    """The claim that must agree before this one is compared."""
    why_not: Callable[[Probe, str], str] = _never
    """Returns the reason why a probe and dtype exclude the comparison; empty if they do not."""
    is_comparable: Callable[[str, ForwardPass], bool] = lambda key, forward: True
    """Returns whether the request of this name can be judged, given the port's forward pass."""
    here: Callable[[ForwardPass], Requests] | None = None
    """Returns the requests to a port that is not a program with a bundle; None: the same as any port's."""
    further: Callable[[ForwardPass], Requests] = lambda forward: {}
    """Returns requests that no bundle has: other batches, lengths and orders of calls, across thresholds."""

    def all_requests(self, forward: ForwardPass) -> Requests:
        """Return all requests that can be judged, for a port without a limit on calls."""
        first = self.here(forward) if self.here else self.requests(forward.probes)
        requests = {**first, **self.further(forward)}
        return {key: request for key, request in requests.items() if self.is_comparable(key, forward)}


@dataclass(frozen=True)
class Capability:
    """One row of the table: its requests, the form of an answer, and the judgment."""

    name: str
    """The section of a bundle, and the option of the command line."""
    attribute: str
    """The attribute of a port that offers it."""
    signature: str
    purpose: str
    """The description in the manifest of a bundle."""
    ways: tuple[Way, ...]
    ask: Callable[[BuiltPort, Way, str, Any], Answers]
    """Asks a port in this process; any exception is possible."""
    shapes: Callable[[str, Any], Shapes]
    """Returns the tensors that a port may write for a request."""
    judge: Callable[[Way, Requests, Answers, ForwardPass], CapabilityResult]
    why_not: Callable[[Probe, str], str] = _never
    """Like `Way.why_not`, for all ways."""
    dtypes: tuple[str, ...] = EVERY
    not_in: str = ""
    """The reason why it is not compared in another dtype."""
    if_forward_diverges: str = ""
    """The reason why it is not compared if the forward pass diverges; empty if it is compared."""
    needs: tuple[str, ...] = ()
    """Other sections that a bundle must have too."""
    describe: Callable[[Any], dict[str, Any]] = lambda request: {}
    """Returns the request in the manifest, as JSON."""
    file: str = ""
    """The file of a bundle with the tensors of requests."""
    tensors: Callable[[Any, Probe], Arrays] = lambda request, probe: {}
    """Returns the tensors of a request: integers, and floats that are exact in float32."""
    received: Callable[[Any, Mapping[str, Any], Answers], Any] = lambda request, fields, tensors: request
    """Returns the request read from a bundle, with the values that another machine may draw differently."""
    free_fields: tuple[str, ...] = ()
    """Fields of the description that `received` takes from the bundle."""
    stays: int | None = None
    """The item of the method's result that stays in the port's process and is passed back to it."""
    missing_is_wrong: bool = False
    """Whether a request is judged even if some of its tensors are missing."""
    is_long: bool = False
    """Whether requests grow with `max_length`."""
    sizes: Callable[[Any], tuple[int, int]] | None = None
    """Returns the rows and tokens of a request for the reach of a claim; None: no reach is reported."""
    is_discrete: bool = False
    """Whether an answer is right or wrong as a whole, so that a fault may show in only some rows."""

    def reach(self, requests: Requests) -> str:
        """Return the reach of a claim: the tokens and, for discrete answers, the rate of wrong rows at 95 %."""
        if self.sizes is None or not requests:
            return ""
        found = [self.sizes(request) for request in requests.values()]
        rows, lengths = sum(each for each, _ in found), [length for _, length in found]
        tokens = " to ".join(f"{length:,}" for length in dict.fromkeys((min(lengths), max(lengths))))
        if not self.is_discrete:
            return f"{tokens} tokens"
        rate = 1 - 0.05 ** (1 / rows)
        return f"prompts of {tokens} tokens in {rows} rows (at most one in {1 / rate:.0f} differs, 95 %)"

    def reason(self, probe: Probe, dtype: str) -> str:
        """Return the reason why nothing is compared, whatever the port does; empty if something is."""
        if reason := self.why_not(probe, dtype):
            return reason
        return "" if dtype in self.dtypes else self.not_in.format(dtype)
