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
"""Probes of one model; the first of them is used where one is enough."""

Requests = Mapping[str, Any]
"""Requests by the prefix of the names of their tensors; each request has a `name` for messages."""

Answers = Mapping[str, np.ndarray]
"""A port's answers as tensors, by their names in a bundle."""

Shapes = dict[str, tuple[int, ...]]

P = ParamSpec("P")
R = TypeVar("R")


def kept_in(position: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache the results of a function in its argument at `position`, and so for as long as that is used.

    A cache of the process would keep every model that it was ever asked about. The results must not refer to the
    argument, or both would wait for the garbage collector, which does not know of the memory of arrays.
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
    """The first probe and its name."""
    return next(iter(probes.items()))


@dataclass(frozen=True)
class BuiltPort:
    """A port in this process."""

    build: Build
    """Builds another one with other parameters."""
    forward: Any
    built: dict[tuple[TransformerConfig, int], tuple[Arrays, Any]] = field(default_factory=dict)
    """Parameters and the ports built with them, by the configuration and the identity of the parameters."""
    of_reached: Mapping[int, Any] = field(default_factory=dict)
    """The ports that were called at other sizes, by the identity of their parameters."""

    def built_for(self, config: TransformerConfig, parameters: Arrays) -> Any:
        """The port with other parameters, copied: the same object whenever it is asked for."""
        if id(parameters) in self.of_reached:
            return self.of_reached[id(parameters)]
        key = config, id(parameters)  # one model may come with several end tokens
        if key not in self.built:  # the parameters are kept, so that no others can have their identity
            copies = {name: value.copy() for name, value in parameters.items()}
            self.built[key] = parameters, self.build(config, copies)
        return self.built[key][-1]


@dataclass(frozen=True)
class ForwardPass:
    """A port's forward pass, by which capabilities are judged."""

    probes: Probes
    logits: Answers
    """By probe."""
    dtype: str
    sharding: Sharding = ALONE
    """The ranks of the port."""
    reached: Sequence[ReachProbe] = ()
    """The calls at other sizes that agree."""


@dataclass(frozen=True)
class Judged:
    """The error of an answer, its budget, its place, and ties to within rounding."""

    error: float
    budget: float
    where: str
    near: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """The error as a multiple of its budget."""
        return share(self.error, self.budget)


def result(
    claim: str,
    worst: Judged,
    explain: Callable[[], Sequence[Cause]],
    *,
    probe: str = "",
    notes: tuple[str, ...] = (),
) -> CapabilityResult:
    """The result of one claim, by the judgement of its worst answer.

    Args:
        claim, worst: the claim, and the error that is the largest share of its budget.
        explain: called if it is too large; returns all causes that explain as much, the likeliest first.
        probe, notes: the probe to blame; notes for the report.
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
    """The cause of an error of which a fault leaves that much."""
    return Cause(fault.id, fault.says, None, left, 1 - left / error)


def _never(*_: Any) -> str:
    return ""


@dataclass(frozen=True)
class Way:
    """One way to use a capability, which is one claim of the report."""

    claim: str
    requests: Callable[[Probes], Requests]
    faults: Sequence[SimulatedFault] = ()
    """Faults that could explain a wrong answer, the likeliest first."""
    keywords: tuple[str, ...] = ()
    """Keywords that the port's method has to accept."""
    requires: str = ""
    """The claim that has to agree before this one is compared."""
    why_not: Callable[[Probe, str], str] = _never
    """The reason why it is not compared for a probe and a dtype, whatever the port does; empty if it is."""
    is_comparable: Callable[[str, ForwardPass], bool] = lambda key, forward: True
    """Whether the request of this name can be judged, given the port's forward pass."""
    here: Callable[[ForwardPass], Requests] | None = None
    """The requests to a port that is no program with a bundle, perhaps on several ranks; None: those of any port."""
    further: Callable[[ForwardPass], Requests] = lambda forward: {}
    """Requests that no bundle has: other batches, lengths and orders of calls, across thresholds."""

    def all_requests(self, forward: ForwardPass) -> Requests:
        """All requests that can be judged, for a port that can be called as often as one likes."""
        first = self.here(forward) if self.here else self.requests(forward.probes)
        requests = {**first, **self.further(forward)}
        return {key: request for key, request in requests.items() if self.is_comparable(key, forward)}


@dataclass(frozen=True)
class Capability:
    """One row of the table: its requests, the form of an answer, and the judgement."""

    name: str
    """The section of a bundle, and the option of the command line."""
    attribute: str
    """The attribute of a port that offers it."""
    signature: str
    purpose: str
    """The description in the manifest of a bundle."""
    ways: tuple[Way, ...]
    ask: Callable[[BuiltPort, Way, str, Any], Answers]
    """Ask a port in this process; it may raise anything."""
    shapes: Callable[[str, Any], Shapes]
    """The tensors that a port may write for a request."""
    judge: Callable[[Way, Requests, Answers, ForwardPass], CapabilityResult]
    why_not: Callable[[Probe, str], str] = _never
    """As for a `Way`, but of all of them."""
    dtypes: tuple[str, ...] = EVERY
    not_in: str = ""
    """The reason why it is not compared in another dtype."""
    if_forward_diverges: str = ""
    """The reason why it is not compared then; empty if it is."""
    needs: tuple[str, ...] = ()
    """Other sections that a bundle with this one has, too."""
    describe: Callable[[Any], dict[str, Any]] = lambda request: {}
    """The request in the manifest, as JSON."""
    file: str = ""
    """The file of a bundle with the tensors of requests."""
    tensors: Callable[[Any, Probe], Arrays] = lambda request, probe: {}
    """The tensors of a request: integers, and floats that are exact in float32."""
    received: Callable[[Any, Mapping[str, Any], Answers], Any] = lambda request, fields, tensors: request
    """The request as read from a bundle, with the values that another machine may draw differently."""
    free_fields: tuple[str, ...] = ()
    """Fields of the description that `received` takes from the bundle."""
    stays: int | None = None
    """The item of the method's result that the port gets back: it stays in the port's process."""
    missing_is_wrong: bool = False
    """Whether a request is judged though some of its tensors were not written."""
    is_long: bool = False
    """Whether requests grow with `max_length`."""
    sizes: Callable[[Any], tuple[int, int]] | None = None
    """The rows and the tokens of a request, by which the reach of a claim is told; None: it is not told."""
    is_discrete: bool = False
    """Whether an answer is right or wrong as a whole, so that a fault may show in some rows only."""

    def reach(self, requests: Requests) -> str:
        """The reach of a claim on `requests`: the tokens, and of discrete answers the rate of wrong rows at 95 %."""
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
        """The reason why nothing of it is compared, whatever the port does; empty if something is."""
        if reason := self.why_not(probe, dtype):
            return reason
        return "" if dtype in self.dtypes else self.not_in.format(dtype)
