import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.capabilities.test_faults import first_probe, found_in, generating, offering

from transparity.config import TransformerConfig
from transparity.sampling import Sampling
from transparity_conformance.capabilities.decoding.generation import GENERATION
from transparity_conformance.capabilities.decoding.teacher_forcing import judged, judged_beams, margins, true_scores
from transparity_conformance.capabilities.faults import BEAM_FAULTS
from transparity_conformance.capabilities.requests import Request, requests_of, simulated
from transparity_numpy.decoding.beams import beam_search
from transparity_numpy.decoding.generation import generate
from transparity_numpy.port import build as numpy_build

PRESETS = ("notes-lm", "pre-norm", "translation")


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_asked_of_beams_is_no_tie(preset: str) -> None:
    for request in (
        *requests_of(first_probe(preset))["beam_search"].first,
        *requests_of(first_probe(preset))["beam_search.length_penalty"].first,
    ):
        tokens, _ = simulated(beam_search, request)
        assert margins(request).min() > 10 * true_scores(request, tokens).budget("scores", "float32")


def test_what_goes_by_a_wrong_greedy_generation_is_not_compared() -> None:
    def generate(prompt: np.ndarray, steps: int, **named: Any) -> np.ndarray:
        return np.concatenate([prompt, np.ones((len(prompt), steps), int)], axis=1)

    found = found_in(GENERATION, offering(lambda *_: {"generate": generate}), "notes-lm")
    assert [fault.where for fault in found.faults] == ["generate"]
    assert [says.partition(":")[0] for says in found.not_compared] == [way.claim for way in GENERATION.ways[1:]]


def test_draws_in_half_precision_are_not_compared() -> None:
    found = found_in(GENERATION, generating(generate), "notes-lm", "bfloat16")
    assert [claim.id for claim in found.claims] == ["generate", "generate.lengths"]
    assert any(says.startswith("generate.sampling: not compared in bfloat16") for says in found.not_compared)


@pytest.mark.parametrize("error", [RuntimeError("no luck"), TypeError("no keyword, but no more is known")])
def test_what_a_way_raises_leaves_the_others_compared(error: Exception) -> None:
    def make(config: TransformerConfig, parameters: dict[str, np.ndarray], forward: Any) -> dict[str, Any]:
        def generate(prompt: np.ndarray, steps: int, **named: Any) -> np.ndarray:
            if "sampling" in named:
                raise error
            tokens: np.ndarray = forward.generate(prompt, steps, **named)
            return tokens

        return {"generate": generate}

    found = found_in(GENERATION, offering(make), "notes-lm")
    (fault,) = found.faults
    assert fault.where == "generate.sampling"
    assert f"raised {type(error).__name__}" in fault.causes[0].says
    agreeing = [claim.id for claim in found.claims if claim.verdict == "agrees"]
    assert agreeing == ["generate", "generate.uniforms", "generate.lengths"]


@pytest.mark.parametrize(("off", "says"), [(-1e-3, "right"), (1e-9, "a tie"), (1e-3, "wrong")])
def test_a_draw_at_a_boundary_is_a_tie_and_one_beyond_it_is_wrong(off: float, says: str) -> None:
    (request,) = requests_of(first_probe("notes-lm"))["generate.uniforms"].first
    assert request.uniforms is not None
    tokens, uniforms = simulated(generate, request), request.uniforms.copy()
    uniforms[0, 0] = upper_end(request, tokens) + off
    found = judged(dataclasses.replace(request, uniforms=uniforms), tokens, "float32")
    place = f"token {request.prompt.shape[1]}, drawn"
    assert (found.share <= 1) == (says != "wrong")
    assert (0 < found.error <= found.budget) == (says == "a tie")
    assert says == "right" or found.where == place


def upper_end(request: Request, tokens: np.ndarray) -> float:
    """Return the upper end of the uniform numbers for which sampling picks the first new token of the first row."""
    context = {"tokens": tokens[:1, : request.prompt.shape[1]]}
    logits = np.asarray(numpy_build(request.config, request.parameters).logits(**context))[0, -1]
    weights = np.exp(logits - logits.max())
    return float(weights[: tokens[0, request.prompt.shape[1]] + 1].sum() / weights.sum())


def test_a_token_that_may_not_be_drawn_is_wrong_however_near_the_number() -> None:
    request = requests_of(first_probe("notes-lm"))["generate.sampling"].first[0]
    tokens = simulated(generate, request)
    errors = {token: judged(request, with_last(tokens, token), "float32").error for token in range(8, 18)}
    assert sum(np.isinf(error) for error in errors.values()) >= 2, "top_k must reject two of these ten tokens"
    assert judged(request, tokens, "float32").error == 0.0


def with_last(tokens: np.ndarray, token: int) -> np.ndarray:
    changed = tokens.copy()
    changed[0, -1] = token
    return changed


def test_a_score_that_is_not_the_tokens_own_is_wrong_and_so_are_worse_tokens() -> None:
    (request,) = requests_of(first_probe("translation"))["beam_search"].first
    tokens, scores = simulated(beam_search, request)
    assert judged_beams(request, tokens, scores, "float32").share < 1
    found = judged_beams(request, tokens, scores + 1e-3, "float32")
    assert (found.share > 1, found.where) == (True, "the scores, beams")
    (alike,) = (fault for fault in BEAM_FAULTS if fault.id == "beams-begin")
    greedy, of_greedy = simulated(alike.simulate, request)
    found = judged_beams(request, greedy, of_greedy, "float32")
    assert (found.share > 1, found.where) == (True, "the tokens, beams")


def twinned(request: Request, token: int, twin: int, by: float) -> Request:
    """Change the head's weights so that the logit of `twin` always equals the logit of `token` plus `by`."""
    weight, bias = (request.parameters[f"head.{part}"].astype(np.float64) for part in ("weight", "bias"))
    weight[twin], bias[twin] = weight[token], bias[token] + by
    return dataclasses.replace(request, parameters=request.parameters | {"head.weight": weight, "head.bias": bias})


@pytest.mark.parametrize(("by", "says"), [(1e-7, "a tie"), (1e-2, "wrong")])
@pytest.mark.parametrize("options", [None, Sampling(top_k=1)], ids=["greedily", "drawn of one"])
def test_another_token_is_right_if_it_is_as_likely_to_within_rounding(
    by: float, says: str, options: Sampling | None
) -> None:
    (request,) = requests_of(first_probe("notes-lm"))["generate.uniforms"].first
    request = dataclasses.replace(request, uniforms=request.uniforms if options else None, sampling=options)
    begin = request.prompt.shape[1]
    token = int(simulated(generate, request)[0, begin])
    twin = 5 if token != 5 else 6
    chosen = simulated(generate, twinned(request, token, twin, by))
    assert chosen[0, begin] == twin
    found = judged(twinned(request, token, twin, -by), chosen, "float32")
    assert (found.share <= 1) == (says == "a tie")


@pytest.mark.parametrize(("by", "says"), [(1e-7, "a tie"), (1e-2, "wrong")])
def test_worse_beams_are_right_if_those_that_were_dropped_for_them_were_as_good_to_within_rounding(
    by: float, says: str
) -> None:
    (request,) = requests_of(first_probe("notes-lm"))["generate.uniforms"].first
    request = dataclasses.replace(request, name="one beam", uniforms=None, beams=1, steps=3)
    token = int(simulated(beam_search, request)[0][0, request.prompt.shape[1]])
    twin = 5 if token != 5 else 6
    worse = []
    for sign in (1, -1):  # one of the two is followed by worse tokens
        tokens, _ = simulated(beam_search, twinned(request, token, twin, sign * by))
        asked = twinned(request, token, twin, -sign * by)
        found = judged_beams(asked, tokens, true_scores(asked, tokens).expected["scores"], "float32")
        behind = (simulated(beam_search, asked)[1] - true_scores(asked, tokens).expected["scores"]).max()
        if behind > found.budget:
            worse.append(found)
    assert worse
    assert all((found.share <= 1) == (says == "a tie") for found in worse)
