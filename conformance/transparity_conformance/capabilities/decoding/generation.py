"""The capabilities `generate` (greedy, sampled, with prompts of different lengths) and `beam_search`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import check_parameters
from transparity_conformance.capabilities.capability import (
    Answered,
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Judged,
    Requests,
    Shapes,
    Way,
    judging,
)
from transparity_conformance.capabilities.decoding.teacher_forcing import judged, judged_beams, true_scores
from transparity_conformance.capabilities.faults import (
    BEAM_FAULTS,
    GREEDY_FAULTS,
    RAGGED_FAULTS,
    SAMPLING_FAULTS,
    SimulatedFault,
)
from transparity_conformance.capabilities.port_calls import call_port
from transparity_conformance.capabilities.requests import Asked, Request, given_requests, requests_of, simulated
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, is_large
from transparity_conformance.oracle.reach.models import crossing_calls
from transparity_conformance.report.comparison import as_numbers, share


def _why_not_generated(probe: Probe, dtype: str) -> str:
    if probe.is_large:
        return "generation would take too long in a model of this size"
    return why_no_decoder(probe, dtype)


def why_no_decoder(probe: Probe, dtype: str) -> str:
    if not probe.config.has_decoder:
        return "an encoder without a decoder generates no tokens"
    return "" if probe.config.head == "logits" else f"the head is {probe.config.head!r}; generation needs logits"


def _why_not_coarse(probe: Probe, dtype: str) -> str:
    return "" if dtype in WIDE else f"not compared in {dtype}: its rounding makes too many tokens equally likely"


def _why_not_ragged(probe: Probe, dtype: str) -> str:
    if probe.config.angle_limits:
        return "rotary angles depend on the length, so shorter rows would get the angles of the longest row"
    exact = probe.config.mask_is_exact
    return "" if exact else "masked keys keep a nonzero weight in this model, so tokens would attend to padding"


def _as_tokens(value: Any) -> np.ndarray:
    tokens = as_numbers(value)
    if tokens.ndim != 2 or tokens.dtype.kind not in "iu":
        raise TypeError(
            f"the tokens have the shape {tokens.shape} and the dtype {tokens.dtype}; expected integers (batch, length)"
        )
    return tokens.astype(np.int64)


def _shapes(key: str, request: Request) -> Shapes:
    batch, length = request.prompt.shape
    tokens: Shapes = {f"{key}/tokens": (batch, length + request.steps)}
    return tokens if request.beams is None else tokens | {f"{key}/scores": (batch,)}


def _ask(port: BuiltPort, way: Way, key: str, request: Request) -> Answers:
    built, (given, named) = port.built_for(request.config, request.parameters), request.arguments()
    if request.beams is None:
        return {f"{key}/tokens": _as_tokens(call_port(built.generate, *given, **named))}
    answer = call_port(built.beam_search, *given, **named)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError("the result is not a pair; expected (tokens, scores)")
    scores = as_numbers(answer[1])
    if scores.shape != (len(request.prompt),) or scores.dtype.kind != "f":
        raise TypeError(
            f"the scores have the shape {scores.shape} and the dtype {scores.dtype}; expected floats (batch,)"
        )
    return {f"{key}/tokens": _as_tokens(answer[0]), f"{key}/scores": scores}


def _judged(answered: Answered, fault: SimulatedFault | None) -> Judged:
    """Judge generated tokens. The reference reads the last `max_length` tokens. If a decoder has no table of positions,
    also accept the tokens of a port that reads all tokens."""
    request, dtype = answered.request, answered.forward.dtype
    tokens, scores = (answered.answers.get(f"{answered.key}/{name}") for name in ("tokens", "scores"))
    assert tokens is not None
    if fault is not None:
        return Judged(0.0 if _explains(fault, request, tokens, scores, dtype) else np.inf, 0.0, request.name)

    def judge(request: Request) -> Judged:
        found = judged(request, tokens, dtype) if scores is None else judged_beams(request, tokens, scores, dtype)
        return dataclasses.replace(found, probe=answered.forward.first.name)

    found, length = judge(request), tokens.shape[-1]
    if not found.is_wrong or length <= request.config.max_length or not _is_unlimited(request.config):
        return found
    longer: TransformerConfig = dataclasses.replace(request.config, max_length=length)
    whole = judge(dataclasses.replace(request, config=longer))
    return found if whole.is_wrong else whole


def _is_unlimited(config: TransformerConfig) -> bool:
    has_table = config.positions in ("learned", "sinusoidal")
    return config.architecture == "decoder" and not has_table and not config.angle_limits


def _explains(
    fault: SimulatedFault, request: Request, tokens: np.ndarray, scores: np.ndarray | None, dtype: str
) -> bool:
    if scores is None:
        return not is_large(request.parameters) and np.array_equal(tokens, simulated(fault.simulate, request))
    other, other_scores = simulated(fault.simulate, request)
    if not np.array_equal(_widest(request, tokens), _widest(request, other)):
        return False
    oracle = true_scores(request, tokens)
    true = np.abs(oracle.expected["scores"]).max()
    # If a fault scales the scores up, their rounding errors grow by the same factor.
    budget = oracle.budget("scores", dtype) * max(1.0, float(np.abs(other_scores).max() / true))
    return share(float(np.abs(scores.astype(np.float64) - other_scores).max()), budget) <= 1


def _describe(request: Request) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": request.name, "max_new_tokens": request.steps, "eos_id": request.config.eos_id}
    if request.beams is not None:
        fields |= {"beams": request.beams, "length_penalty": request.length_penalty}
    return fields if request.sampling is None else fields | {"sampling": dataclasses.asdict(request.sampling)}


def _tensors(request: Request, probe: Probe) -> Arrays:
    arrays = {name: getattr(request, name) for name in ("prompt", "source", "lengths", "uniforms")}
    changed = {
        f"parameters/{name}": value for name, value in request.parameters.items() if value is not probe.parameters[name]
    }
    return {name: value for name, value in arrays.items() if value is not None} | changed


def _received(request: Request, fields: Mapping[str, Any], tensors: Answers) -> Request:
    """Return the request with the bundle's end token and parameters. These values depend on the rounding errors of the
    machine that wrote the bundle."""
    changed = {name.removeprefix("parameters/"): value for name, value in tensors.items() if "parameters/" in name}
    parameters = {name: changed.get(name, value) for name, value in request.parameters.items()}
    config: TransformerConfig = dataclasses.replace(request.config, eos_id=fields["eos_id"])
    check_parameters(config, parameters)
    return dataclasses.replace(request, config=config, parameters=parameters)


def _widest(request: Request, tokens: np.ndarray) -> np.ndarray:
    missing = max(0, request.prompt.shape[1] + request.steps - tokens.shape[1])
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=request.config.filling_id)


def _way(claim: str, of: Callable[[Probe], Mapping[str, Asked]] = requests_of, **options: Any) -> Way:
    """Return one form of generation. All requests in bundles use the first probe's model."""

    def requests(forward: ForwardPass) -> Requests:
        return {f"{claim}.{i}": each for i, each in enumerate(of(forward.first)[claim].first)}

    def further(forward: ForwardPass) -> Requests:
        asked_for = of(forward.first)[claim]
        calls = [call for call in crossing_calls(forward.reached) if not call.config.angle_limits]
        across = map(asked_for.across, calls) if asked_for.across else ()
        return {f"{claim}.further.{i}": each for i, each in enumerate([*asked_for.further, *across])}

    return Way(claim, requests, further=further, **options)


_beams = functools.partial(_way, faults=BEAM_FAULTS, why_not=_why_not_coarse)

DRAWN: dict[str, Any] = {"faults": SAMPLING_FAULTS, "requires": "generate", "why_not": _why_not_coarse}

GENERATION = Capability(
    name="generation",
    attribute="generate",
    purpose="tokens (batch, length): the prompt and its continuation, then -1 up to the length. A request may replace "
    "some of the model's parameters, and has its own end token",
    ways=(
        _way("generate", faults=GREEDY_FAULTS),
        _way("generate.uniforms", keywords=("uniforms",), **DRAWN),
        _way("generate.sampling", keywords=("uniforms", "sampling"), **DRAWN),
        _way(
            "generate.lengths",
            faults=RAGGED_FAULTS,
            keywords=("lengths",),
            requires="generate",
            why_not=_why_not_ragged,
        ),
    ),
    ask=_ask,
    shapes=_shapes,
    judge=judging(_judged, reports_first=True),
    why_not=_why_not_generated,
    describe=_describe,
    file="generation.safetensors",
    tensors=_tensors,
    received=_received,
    free_fields=("eos_id",),
    is_long=True,
    sizes=lambda request: request.prompt.shape,
    is_discrete=True,
)

BEAMS = dataclasses.replace(
    GENERATION,
    name="beams",
    attribute="beam_search",
    purpose="tokens as in generation, and a score for each row (batch,). The score is the sum of log softmax(logits) "
    "at the n new tokens, up to the end token, divided by ((5 + n) / 6)^length_penalty",
    ways=(
        _beams("beam_search"),
        _beams("beam_search.length_penalty", keywords=("length_penalty",)),
    ),
    file="beams.safetensors",
)

GENERATION_OF_GIVEN = dataclasses.replace(
    GENERATION,
    ways=(_way("generate", given_requests, faults=GREEDY_FAULTS),),
    why_not=why_no_decoder,
    is_long=False,
)
"""Generation with the weights of a checkpoint. A request has about as many tokens as the first probe."""

BEAMS_OF_GIVEN = dataclasses.replace(BEAMS, ways=(_beams("beam_search", given_requests),), is_long=False)
