"""What a port generates, held to the reference: greedily, drawn, from prompts of different lengths, and by beams."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.beams import BEAM_FAULTS
from transparity_conformance.capabilities.faults.generation import GREEDY_FAULTS, RAGGED_FAULTS
from transparity_conformance.capabilities.faults.sampling import SAMPLING_FAULTS
from transparity_conformance.capabilities.requests import (
    Request,
    beam_requests,
    drawing_requests,
    greedy_requests,
    penalty_requests,
    ragged_requests,
    sampling_requests,
)
from transparity_conformance.capabilities.teacher_forcing import Judged, judged, judged_beams, true_scores
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.capability_result import CapabilityResult, alternatives, not_compared
from transparity_conformance.report.comparison import as_numbers, share
from transparity_conformance.report.formatting import describe_error
from transparity_conformance.report.report import Cause, ClaimResult, Divergence

Build = Callable[[TransformerConfig, Arrays], Any]


@dataclass(frozen=True)
class Way:
    """One way to generate: what is asked with which keywords, and what people do wrong in it."""

    claim: str
    keywords: tuple[str, ...]
    requests: Callable[[Probe], tuple[Request, ...]]
    catalogue: Sequence[SimulatedFault]


GREEDY = Way("generate", (), greedy_requests, GREEDY_FAULTS)
FURTHER = (
    Way("generate.uniforms", ("uniforms",), drawing_requests, SAMPLING_FAULTS),
    Way("generate.sampling", ("uniforms", "sampling"), sampling_requests, SAMPLING_FAULTS),
    Way("generate.lengths", ("lengths",), ragged_requests, RAGGED_FAULTS),
)
BEAMS = (
    Way("beam_search", (), beam_requests, BEAM_FAULTS),
    Way("beam_search.length_penalty", ("length_penalty",), penalty_requests, BEAM_FAULTS),
)


def compare_generation(build: Build, generate: Callable[..., Any], probe: Probe, dtype: str) -> CapabilityResult:
    """Ask the port for all that its `generate` takes, and judge."""
    found = _compared(build, GREEDY, probe, dtype)
    is_greedy = [claim.verdict for claim in found.claims] == ["agrees"]
    for way in FURTHER:
        reason = "" if is_greedy else "greedy generation is not right, and this goes by it"
        reason = reason or why_not(way, probe.config, dtype) or _not_taken(generate, way)
        found += not_compared(f"{way.claim}: {reason}") if reason else _compared(build, way, probe, dtype)
    return found


def compare_beams(build: Build, beam_search: Callable[..., Any], probe: Probe, dtype: str) -> CapabilityResult:
    """Ask the port for all that its `beam_search` takes, and judge."""
    found = CapabilityResult()
    for way in BEAMS:
        reason = why_not(way, probe.config, dtype) or _not_taken(beam_search, way)
        found += not_compared(f"{way.claim}: {reason}") if reason else _compared(build, way, probe, dtype)
    return found


def why_not(way: Way, config: TransformerConfig, dtype: str) -> str:
    """Why one way is not compared, whatever a port is like; nothing if it is."""
    if "lengths" in way.keywords:
        return "" if config.mask_is_exact else "this mask hides nothing, so rows would see what fills them up"
    return "" if dtype in WIDE else f"where rounding is coarse, too much is a tie: it is not compared in {dtype}"


def _not_taken(method: Callable[..., Any], way: Way) -> str:
    try:
        taken = inspect.signature(method).parameters
    except (TypeError, ValueError):  # some callables have none to be read; then one has to try
        return ""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values()):
        return ""
    missing = [keyword for keyword in way.keywords if keyword not in taken]
    name = way.claim.partition(".")[0]
    return f"the port's {name} takes no {' and no '.join(missing)}" if missing else ""


def _compared(build: Build, way: Way, probe: Probe, dtype: str) -> CapabilityResult:
    asked = way.requests(probe)
    try:
        said = [_asked(build, way, request) for request in asked]
    except Exception as error:  # noqa: BLE001 - whatever a stranger's method does with what it is given
        return not_compared(f"{way.claim}: raised {describe_error(error)}")
    found = [_judged(request, *answer, dtype) for request, answer in zip(asked, said, strict=True)]
    worst = max(found, key=lambda item: item.share)
    notes = tuple(f"{way.claim}: {near}" for item in found for near in item.near)
    verdict = "agrees" if worst.share <= 1 else "diverges"
    claim = ClaimResult(way.claim, verdict, worst.error, worst.budget, worst.where)  # type: ignore[arg-type]
    if worst.share <= 1:
        return CapabilityResult((claim,), notes=notes)
    explaining = [
        how
        for how in way.catalogue
        if all(_explains(how, request, *answer, dtype) for request, answer in zip(asked, said, strict=True))
    ]
    causes = tuple(Cause(how.id, how.says, None, 0.0, 1.0) for how in explaining[:1])
    fault = Divergence(way.claim, worst.error, worst.budget, causes, alternatives(explaining), probe=probe.name)
    return CapabilityResult((claim,), (fault,), notes=notes)


def _asked(build: Build, way: Way, request: Request) -> tuple[np.ndarray, np.ndarray | None]:
    """The tokens, and the scores if beams were asked for."""
    forward = build(request.config, {name: value.copy() for name, value in request.parameters.items()})
    given = (request.prompt.astype(np.int64), request.steps)
    if way not in BEAMS:
        return _tokens(forward.generate(*given, **request.named(*way.keywords))), None
    said = forward.beam_search(*given, request.beams, **request.named(*way.keywords))
    if not isinstance(said, tuple) or len(said) != 2:
        raise TypeError("what is no pair, expected (tokens, scores)")
    scores = as_numbers(said[1])
    if scores.shape != (len(request.prompt),) or scores.dtype.kind != "f":
        raise TypeError(f"scores of the shape {scores.shape} and dtype {scores.dtype}, expected (batch,) of floats")
    return _tokens(said[0]), scores.astype(np.float64)


def _tokens(said: Any) -> np.ndarray:
    tokens = as_numbers(said)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise TypeError(
            f"tokens of the shape {tokens.shape} and dtype {tokens.dtype}, expected (batch, length) of integers"
        )
    return tokens.astype(np.int64)


def _judged(request: Request, tokens: np.ndarray, scores: np.ndarray | None, dtype: str) -> Judged:
    return judged(request, tokens, dtype) if scores is None else judged_beams(request, tokens, scores, dtype)


def _explains(how: SimulatedFault, request: Request, tokens: np.ndarray, scores: np.ndarray | None, dtype: str) -> bool:
    """Whether a port with this mistake would answer so."""
    if scores is None:
        return np.array_equal(tokens, simulated_tokens(how.simulate, request))
    simulated, simulated_scores = simulated_beams(how.simulate, request)
    if not np.array_equal(_widest(request, tokens), _widest(request, simulated)):
        return False
    oracle = true_scores(request, tokens)
    true = np.abs(oracle.expected["scores"]).max()
    # Scores that are larger than right ones round by as much more.
    budget = oracle.budget("scores", dtype) * max(1.0, float(np.abs(simulated_scores).max() / true))
    return share(float(np.abs(scores - simulated_scores).max()), budget) <= 1


def _widest(request: Request, tokens: np.ndarray) -> np.ndarray:
    """Tokens filled up to all that were asked for: how long other beams went on is nobody's mistake."""
    width = request.prompt.shape[1] + request.steps
    missing = max(0, width - tokens.shape[1])
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=request.config.filling_id)


@functools.cache
def simulated_tokens(simulate: Callable[..., np.ndarray], request: Request) -> np.ndarray:
    """The tokens that a simulated port answers."""
    named = request.named("lengths", "uniforms", "sampling")
    return simulate(request.config, request.parameters, request.prompt, request.steps, **named)


@functools.cache
def simulated_beams(simulate: Callable[..., Any], request: Request) -> tuple[np.ndarray, np.ndarray]:
    """The tokens and the scores that a simulated port answers."""
    given = (request.config, request.exact, request.prompt, request.steps, request.beams)
    tokens, scores, _ = simulate(*given, **request.named("length_penalty"))
    return tokens, scores
