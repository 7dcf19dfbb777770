"""Types that define a capability of a port: which requests the checker makes, and how it judges the results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from transparity_conformance.report.comparison import Compared
from transparity_conformance.report.report import DIVERGES, CapabilityResult, Cause, ClaimResult, Divergence, Verdict

Build = Callable[[TransformerConfig, Arrays], Any]

Probes = Mapping[str, Probe]
"""Probes (configuration, weights and inputs) of one model, by name. Most capabilities use only the first probe."""

Requests = Mapping[str, Any]
"""Requests by key, such as `generate.0`. The names of a request's tensors start with the key of the request."""

Answers = Mapping[str, np.ndarray]
"""A port's results by tensor name, as in a bundle."""

Shapes = dict[str, tuple[int, ...]]

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")

Judge = Callable[["Way", Requests, Answers, "ForwardPass"], CapabilityResult]


def kept_in(position: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Cache a function's results in an attribute of the argument at `position`, so that Python frees the argument and
    the results together. The results must not refer to the argument, because Python frees reference cycles late."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def cached(*args: P.args, **named: P.kwargs) -> R:
            results = vars(args[position]).setdefault("_results", {})
            others = [value for index, value in enumerate(args) if index != position % len(args)]
            key = (function, *others, *sorted(named.items()))
            if key not in results:
                results[key] = function(*args, **named)
            return results[key]

        return cached

    return decorate


@dataclass(frozen=True)
class BuiltPort:
    """A port in this process: its `build` function, and the objects that this function returned."""

    build: Build
    forward: Any
    built: dict[tuple[TransformerConfig, int], tuple[Arrays, Any]] = field(default_factory=dict)
    """(parameters, built port) of each model, by the configuration and the `id` of the parameters."""
    of_reached: Mapping[int, Any] = field(default_factory=dict)
    """The built ports for calls that are longer or have other model sizes than the probes, by the `id` of the
    parameters."""

    def of(self, probe: Probe) -> Any:
        return self.built_for(probe.config, probe.parameters) if isinstance(probe, ReachProbe) else self.forward

    def built_for(self, config: TransformerConfig, parameters: Arrays) -> Any:
        """Build the port with a copy of `parameters`; if `parameters` were used before, return the same port."""
        if id(parameters) in self.of_reached:
            return self.of_reached[id(parameters)]
        key = config, id(parameters)  # requests with another end token have another config
        if key not in self.built:  # keep the parameters, so that no other object gets their `id`
            copies = {name: value.copy() for name, value in parameters.items()}
            self.built[key] = parameters, self.build(config, copies)
        return self.built[key][-1]


@dataclass(frozen=True)
class ForwardPass:
    """The results of a port's forward pass, from which the checker judges the port's capabilities."""

    probes: Probes
    logits: Answers
    """The port's logits, by the name of the probe."""
    dtype: str
    sharding: Sharding = ALONE
    reached: Sequence[ReachProbe] = ()
    """Calls with other lengths or sizes than the probes, in which the port agrees with the reference."""

    @property
    def key(self) -> str:
        return next(iter(self.probes))

    @property
    def first(self) -> Probe:
        return self.probes[self.key]


@dataclass(frozen=True)
class Judged(Compared):
    error: float
    budget: float
    where: str
    """The name of the token or tensor with the error."""
    probe: str = ""
    """The name of the probe whose model the request uses."""


@dataclass(frozen=True, eq=False)
class Answered:
    """A request with the port's answer."""

    key: str
    request: Any
    answers: Answers
    forward: ForwardPass

    def value(self, name: str) -> np.ndarray:
        return self.answers[f"{self.key}/{name}"].astype(np.float64)


def result(claim: str, worst: Judged, causes: Sequence[Cause], notes: Iterable[str] = ()) -> CapabilityResult:
    """Return the result of one claim, with the largest error. `causes` may explain an error above its tolerance; the
    most likely cause is first."""
    claims, notes = (ClaimResult.of(claim, worst.error, worst.budget, worst.where),), tuple(notes)
    if not worst.is_wrong:
        return CapabilityResult(claims, notes=notes)
    others = dict.fromkeys(cause.mistake for cause in causes if cause.mistake != causes[0].mistake)
    fault = Divergence(claim, worst.error, worst.budget, tuple(causes[:1]), tuple(others), probe=worst.probe)
    return CapabilityResult(claims, (fault,), notes=notes if causes else (f"{claim}, wrong at: {worst.where}", *notes))


def compare_answers(
    claim: str,
    given: Sequence[A],
    judged: Callable[[A, SimulatedFault | None], Judged],
    faults: Iterable[SimulatedFault],
    *,
    fitted: Callable[[A], Iterable[Cause]] = lambda worst: (),
    notes: Callable[[Mapping[A, Judged]], Sequence[str]] = lambda found: (),
    reports_first: bool = False,
) -> tuple[CapabilityResult, list[SimulatedFault]]:
    """Compare the answers to all requests of a claim; return the result, and the faults that explain all answers.

    Args:
        judged: Compares an answer with the reference, or with a reference that has a fault.
        fitted: Returns causes with a fitted number, given the worst answer. The report shows these causes only if no
            fault explains the answers.
        notes: Returns notes for the report.
        reports_first: Whether to report the first wrong answer, not the largest error; simple requests come first.
    """
    found = {each: judged(each, None) for each in given}
    worst = max(found, key=lambda each: found[each].share)
    worst = next((each for each in found if reports_first and found[each].is_wrong), worst)
    wrong, error, budget = found[worst].is_wrong, found[worst].error, found[worst].budget
    given = [worst, *(each for each in given if each != worst)]  # most faults do not explain the worst answer
    left = {fault: _left(judged, given, fault) for fault in (faults if wrong else ())}
    explaining = {fault: rest * budget for fault, rest in left.items() if rest <= 1}
    causes = [Cause(each.id, each.says, None, rest, 1 - rest / error) for each, rest in explaining.items()]
    causes = causes or list(fitted(worst) if wrong else ())[:1]
    return result(claim, found[worst], causes, notes(found)), list(explaining)


def _left(judged: Callable[[A, SimulatedFault | None], Judged], given: Sequence[A], fault: SimulatedFault) -> float:
    """Put `fault` into the reference, and return the largest ratio of error to tolerance. Stop at the first wrong
    answer."""
    most = 0.0
    for each in given:
        most = max(most, judged(each, fault).share)
        if most > 1:
            break
    return most


def judging(judged: Callable[[Answered, SimulatedFault | None], Judged], **options: Any) -> Judge:
    @np.errstate(all="ignore")  # a port may return any number
    def judge(way: Way, requests: Requests, answers: Answers, forward: ForwardPass) -> CapabilityResult:
        given = [Answered(key, request, answers, forward) for key, request in requests.items()]
        faults = (*way.faults_of_ranks(forward.sharding), *way.faults)
        return compare_answers(way.claim, given, judged, faults, **options)[0]

    return judge


@dataclass(frozen=True)
class Way:
    """One form of a capability, such as sampling in `generate`. The report has one claim for each form."""

    claim: str
    requests: Callable[[ForwardPass], Requests]
    """A function that returns the requests. For a bundle, the argument is a forward pass without logits."""
    faults: Sequence[SimulatedFault] = ()
    """Known faults that may explain a wrong result, most likely first."""
    faults_of_ranks: Callable[[Sharding], Sequence[SimulatedFault]] = lambda sharding: ()
    """A function that returns known faults which only a port on several ranks can have."""
    keywords: tuple[str, ...] = ()
    """Keyword arguments that the port's method must accept."""
    is_optional: bool = False
    """Whether the claim is compared only if the port's signature names the `keywords`. Bundles omit optional claims."""
    is_listed: bool = True
    """Whether reports list an optional claim as not compared if the port's method does not accept the `keywords`."""
    requires: str = ""
    """The id of another claim, in which the port must agree before this claim is compared; empty for no condition."""
    why_not: Callable[[Probe, str], str] = lambda probe, dtype: ""
    """A function of a probe and a dtype that returns the reason why the claim is not compared, or an empty text."""
    is_comparable: Callable[[str, ForwardPass], bool] = lambda key, forward: True
    """Whether the result of the forward pass suffices to judge the request with this key."""
    further: Callable[[ForwardPass], Requests] = lambda forward: {}
    """A function that returns requests which no bundle contains, such as requests with other batch sizes."""

    def all_requests(self, forward: ForwardPass) -> Requests:
        requests = {**self.requests(forward), **self.further(forward)}
        return {key: request for key, request in requests.items() if self.is_comparable(key, forward)}


@dataclass(frozen=True)
class Capability:
    """A capability of a port: the requests, the format of the results, and the function that judges them."""

    name: str
    """The name of the section in a bundle, and of the command-line option."""
    attribute: str
    """The name of the port's method."""
    purpose: str
    """The description in a bundle's manifest."""
    ways: tuple[Way, ...]
    ask: Callable[[BuiltPort, Way, str, Any], Answers]
    """A function that calls a port in this process; it may raise any exception."""
    shapes: Callable[[str, Any], Shapes]
    """A function that returns the names and shapes of the tensors that a port may write for a request."""
    judge: Judge
    applies: Callable[[TransformerConfig], bool] = lambda config: True
    """Whether reports list the capability as not compared if the port lacks the method."""
    why_not: Callable[[Probe, str], str] = lambda probe, dtype: ""
    """A function of a probe and a dtype that returns the reason why no claim is compared, or an empty text."""
    dtypes: tuple[str, ...] = EVERY
    needs_forward: bool = True
    """Whether the capability is compared only if the forward pass agrees."""
    needs: tuple[str, ...] = ()
    """Other sections of a bundle that the judgment of this section needs."""
    describe: Callable[[Any], dict[str, Any]] = lambda request: {}
    """A function that returns a request as JSON for the manifest."""
    file: str = ""
    """The file of a bundle that contains the tensors of requests."""
    tensors: Callable[[Any, Probe], Arrays] = lambda request, probe: {}
    """A function that returns a request's tensors: integers, and floats that float32 represents exactly."""
    received: Callable[[Any, Mapping[str, Any], Answers], Any] = lambda request, fields, tensors: request
    """A function that returns the request with values from a bundle, which another machine may have written."""
    free_fields: tuple[str, ...] = ()
    """The fields that `received` reads from the request's entry in the manifest."""
    stays: int | None = None
    """The index of an item in the method's result that must stay in the port's process, such as a cache."""
    missing_is_wrong: bool = False
    """Whether a missing tensor counts as a wrong result."""
    is_long: bool = False
    """Whether the length of requests grows with `max_length`."""
    sizes: Callable[[Any], tuple[int, int]] | None = None
    """A function that returns the numbers of rows and tokens of a request; None if reports do not state these
    numbers."""
    is_discrete: bool = False
    """Whether a row is only right or wrong as a whole, like generated tokens; a fault may change only a few rows."""

    def reach(self, requests: Requests) -> str:
        """Describe how many tokens were compared. For discrete results, add a 95 % bound on the rate of wrong rows."""
        if self.sizes is None or not requests:
            return ""
        found = [self.sizes(request) for request in requests.values()]
        rows, lengths = sum(each for each, _ in found), [length for _, length in found]
        tokens = " to ".join(f"{length:,}" for length in dict.fromkeys((min(lengths), max(lengths))))
        if not self.is_discrete:
            return f"{tokens} tokens"
        rate = 1 - 0.05 ** (1 / rows)
        return f"prompts of {tokens} tokens in {rows} rows (95 % confidence: at most 1 row in {int(1 / rate)} differs)"

    def after(self, verdict: Verdict) -> str:
        reasons = {
            "diverges": f"not compared, because {DIVERGES}",
            "inconclusive": "too little of the forward pass was compared",
        }
        return reasons.get(verdict, "") if self.needs_forward else ""

    def reason(self, probe: Probe, dtype: str) -> str:
        too_coarse = "" if dtype in self.dtypes else f"not compared in {dtype}, whose rounding is too coarse"
        return self.why_not(probe, dtype) or too_coarse
