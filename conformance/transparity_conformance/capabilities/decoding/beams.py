"""The capability `beam_search`: the tokens, and their scores with a length penalty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from transparity_conformance.capabilities.capability import (
    Answers,
    BuiltPort,
    Capability,
    ForwardPass,
    Requests,
    Shapes,
    Way,
    first_of,
    kept_in,
)
from transparity_conformance.capabilities.decoding.generation import (
    DIVERGES,
    as_tokens,
    built_for,
    describe,
    numbered,
    received,
    result_of,
    tensors,
    token_shapes,
    why_not_coarse,
    why_not_generated,
)
from transparity_conformance.capabilities.decoding.teacher_forcing import judged_beams, true_scores
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.beams import BEAM_FAULTS
from transparity_conformance.capabilities.requests import (
    Request,
    beam_requests,
    further_beam_requests,
    penalty_requests,
)
from transparity_conformance.capabilities.stranger import call_stranger
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.comparison import as_numbers, share


def _ask(port: BuiltPort, way: Way, key: str, request: Request) -> Answers:
    given = (request.prompt.astype(np.int64), request.steps, request.beams)
    answer = call_stranger(built_for(port, request).beam_search, *given, **request.named(*way.keywords))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError("a result that is no pair, expected (tokens, scores)")
    scores = as_numbers(answer[1])
    if scores.shape != (len(request.prompt),) or scores.dtype.kind != "f":
        raise TypeError(f"scores of the shape {scores.shape} and dtype {scores.dtype}, expected (batch,) of floats")
    return {f"{key}/tokens": as_tokens(answer[0]), f"{key}/scores": scores}


def _shapes(key: str, request: Request) -> Shapes:
    return token_shapes(key, request) | {f"{key}/scores": (len(request.prompt),)}


@np.errstate(all="ignore")  # a port may return any number
def _judge(way: Way, requests: Requests, answers: Answers, forward: ForwardPass) -> CapabilityResult:
    given = [
        (request, answers[f"{key}/tokens"], answers[f"{key}/scores"].astype(np.float64))
        for key, request in requests.items()
    ]
    found = [judged_beams(*answer, forward.dtype) for answer in given]

    def explains(fault: SimulatedFault) -> bool:
        return all(_explains(fault, *answer, forward.dtype) for answer in given)

    return result_of(way, first_of(forward.probes)[1].name, found, explains)


def _explains(fault: SimulatedFault, request: Request, tokens: np.ndarray, scores: np.ndarray, dtype: str) -> bool:
    """Return whether a port with this fault would answer so."""
    simulated, simulated_scores = simulated_beams(fault.simulate, request)
    if not np.array_equal(_widest(request, tokens), _widest(request, simulated)):
        return False
    oracle = true_scores(request, tokens)
    true = np.abs(oracle.expected["scores"]).max()
    # Scores that are larger than right ones round by as much more.
    budget = oracle.budget("scores", dtype) * max(1.0, float(np.abs(simulated_scores).max() / true))
    return share(float(np.abs(scores - simulated_scores).max()), budget) <= 1


def _widest(request: Request, tokens: np.ndarray) -> np.ndarray:
    """Pad tokens to the longest continuation: other beams may be longer without a fault."""
    width = request.prompt.shape[1] + request.steps
    missing = max(0, width - tokens.shape[1])
    return np.pad(tokens, ((0, 0), (0, missing)), constant_values=request.config.filling_id)


@kept_in(1)
def simulated_beams(simulate: Callable[..., Any], request: Request) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens and the scores of a simulated port."""
    given = (request.config, request.exact, request.prompt, request.steps, request.beams)
    tokens, scores, _ = simulate(*given, **request.named("length_penalty"))
    return tokens, scores


BEAMS = Capability(
    name="beams",
    attribute="beam_search",
    signature="beam_search(prompt, max_new_tokens, beams, source=…), and length_penalty=… → tokens and scores (batch,)",
    help="Add prompts to the bundle that a port continues by beam search.",
    purpose="tokens as in generation, and the score (batch,) of each row: the sum of log softmax(logits) at its new "
    "tokens up to the end token, divided by ((5 + their number) / 6)^length_penalty",
    ways=(
        Way(
            "beam_search",
            numbered("beam_search", beam_requests),
            BEAM_FAULTS,
            why_not=why_not_coarse,
            further=numbered("beam_search.further", further_beam_requests),
        ),
        Way(
            "beam_search.length_penalty",
            numbered("beam_search.length_penalty", penalty_requests),
            BEAM_FAULTS,
            ("length_penalty",),
            why_not=why_not_coarse,
        ),
    ),
    ask=_ask,
    shapes=_shapes,
    judge=_judge,
    why_not=why_not_generated,
    if_forward_diverges=DIVERGES,
    describe=describe,
    file="beams.safetensors",
    tensors=tensors,
    received=received,
    free_fields=("eos_id",),
    is_long=True,
)
