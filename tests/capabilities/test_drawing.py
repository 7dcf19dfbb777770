"""Sampled tokens, ragged prompts and beams of a port: each fault is found and named."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity.protocol import Backend
from transparity.sampling import Sampling
from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass, Way
from transparity_conformance.capabilities.compare import compare_capability
from transparity_conformance.capabilities.decoding.beams import BEAMS, simulated_beams
from transparity_conformance.capabilities.decoding.generation import GENERATION, simulated_tokens
from transparity_conformance.capabilities.decoding.teacher_forcing import best_scores, judged, judged_beams, true_scores
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.beams import BEAM_FAULTS, simulate_beam_search
from transparity_conformance.capabilities.faults.generation import RAGGED_FAULTS, simulate_generation
from transparity_conformance.capabilities.faults.sampling import SAMPLING_FAULTS
from transparity_conformance.capabilities.requests import (
    Request,
    beam_requests,
    drawing_requests,
    penalty_requests,
    ragged_requests,
    sampling_requests,
)
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.report.capability_result import CapabilityResult
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.comparison import difference
from transparity_numpy.decoding.beams import beam_search
from transparity_numpy.port import build as numpy_build

PRESETS = ("notes-lm", "pre-norm", "translation")
ENDLESS = ("unfinished continuations", "beams are kept by their scores", "an ended continuation")
"""Beginnings of the descriptions of faults that show only when a row ends."""


class Generating:
    """A right forward pass that generates in its own way."""

    def __init__(self, config: TransformerConfig, parameters: dict[str, np.ndarray], **offers: Any) -> None:
        self.forward = numpy_build(config, parameters, dtype="float32")
        vars(self).update(offers)

    def __call__(self, **tokens: Any) -> Any:
        return self.forward(**tokens)


Simulate = Callable[..., Any]


def generating(simulate: Simulate) -> Callable[..., Any]:
    """A port whose `generate` is simulated; greedily, it is right."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        def generate(
            prompt: np.ndarray,
            steps: int,
            source: np.ndarray | None = None,
            uniforms: np.ndarray | None = None,
            sampling: Sampling | None = None,
            lengths: np.ndarray | None = None,
        ) -> np.ndarray:
            chosen = simulate_generation if uniforms is None and lengths is None else simulate
            named: dict[str, Any] = {"uniforms": uniforms, "sampling": sampling, "lengths": lengths}
            return chosen(config, parameters, prompt, steps, source=source, **named)

        return Generating(config, parameters, generate=generate)

    return build


def searching(simulate: Simulate) -> Callable[..., Any]:
    """A port whose `beam_search` is simulated, in float32."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        def search(
            prompt: np.ndarray, steps: int, beams: int, source: np.ndarray | None = None, length_penalty: float = 0.0
        ) -> tuple[np.ndarray, np.ndarray]:
            named: dict[str, Any] = {"length_penalty": length_penalty, "source": source}
            tokens, scores, _ = simulate(config, parameters, prompt, steps, beams, **named)
            return tokens, scores

        return Generating(config, parameters, beam_search=search)

    return build


def first_probe(preset: str) -> Probe:
    return next(iter(probes(preset).values()))


def built(build: Callable[..., Any], preset: str) -> BuiltPort:
    return BuiltPort(build, build(first_probe(preset).config, first_probe(preset).parameters))


def whole(preset: str, dtype: str = "float32") -> ForwardPass:
    return ForwardPass({"mixed": first_probe(preset)}, {}, dtype)


def found_in(build: Callable[..., Any], preset: str = "translation") -> Any:
    """Findings in the tokens that a port generates."""
    row = GENERATION if hasattr(built(build, preset).forward, "generate") else BEAMS
    return compare_capability(row, built(build, preset), whole(preset))


def assert_named(found: Any, claim: str, says: str) -> None:
    """The last fault is in `claim`, and is this mistake and no other."""
    fault = found.faults[-1]
    assert {fault.where for fault in found.faults} <= {held.id for held in found.claims}
    assert (fault.where, [cause.says for cause in fault.causes], fault.indistinguishable) == (claim, [says], ())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", SAMPLING_FAULTS, ids=lambda how: how.says)
def test_a_wrong_drawing_is_named(how: SimulatedFault) -> None:
    assert_named(found_in(generating(how.simulate), "notes-lm"), "generate.sampling", how.says)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", RAGGED_FAULTS, ids=lambda how: how.says)
def test_a_wrong_way_with_ragged_prompts_is_named(how: SimulatedFault) -> None:
    assert_named(found_in(generating(how.simulate)), "generate.lengths", how.says)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", BEAM_FAULTS, ids=lambda how: how.says)
def test_a_wrong_beam_search_is_named(how: SimulatedFault) -> None:
    assert_named(found_in(searching(how.simulate)), "beam_search.length_penalty", how.says)


def test_a_temperature_that_multiplies_is_named() -> None:
    report = check(generating(SAMPLING_FAULTS[0].simulate), preset="notes-lm", logits_only=True)
    assert (report.verdict, report.first_divergence) == ("diverges", "generate.sampling")
    assert "the logits are multiplied by the temperature, not divided" in sentence(report)
    held = {claim.id: claim.verdict for claim in report.claims}
    assert held["generate"] == held["generate.uniforms"] == "agrees"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", [generating(simulate_generation), searching(simulate_beam_search)])
@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_right_agrees(build: Callable[..., Any], preset: str) -> None:
    found = found_in(build, preset)
    assert not found.faults
    assert {claim.verdict for claim in found.claims} == {"agrees"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("way", [*GENERATION.ways[2:], BEAMS.ways[1]], ids=lambda way: way.claim)
def test_every_mistake_shows_in_what_is_asked_and_no_two_alike(way: Way, preset: str) -> None:
    probe = first_probe(preset)
    ends = probe.config.eos_id is not None
    faults = [fault for fault in way.faults if ends or not fault.says.startswith(ENDLESS)]
    right = simulate_beam_search if way in BEAMS.ways else simulate_generation
    answers = {"right": answered(way, right, probe)} | {
        fault.says: answered(way, fault.simulate, probe) for fault in faults
    }
    assert len(answers) == 1 + len(faults)
    for (one, first), (other, second) in itertools.combinations(answers.items(), 2):
        assert first != second, (one, other)


def answered(way: Way, simulate: Simulate, probe: Probe) -> list[bytes]:
    """The answers of a simulated port to all requests of a way, with scores to six digits."""
    asked = way.requests({"mixed": probe}).values()
    if way not in BEAMS.ways:
        return [simulated_tokens(simulate, request).tobytes() for request in asked]
    return [
        tokens.tobytes() + np.round(scores, 6).tobytes()
        for tokens, scores in (simulated_beams(simulate, request) for request in asked)
    ]


@pytest.mark.parametrize("preset", PRESETS)
def test_what_is_asked_of_beams_is_no_tie(preset: str) -> None:
    for request in (*beam_requests(first_probe(preset)), *penalty_requests(first_probe(preset))):
        exact = {name: value.astype(np.float64) for name, value in request.parameters.items()}
        given = (request.config, exact, request.prompt, request.steps, request.beams)
        tokens, scores, margin = simulate_beam_search(
            *given, length_penalty=request.length_penalty, source=request.source
        )
        expected = beam_search(*given, length_penalty=request.length_penalty, source=request.source)
        np.testing.assert_array_equal(tokens, expected[0])
        oracle = true_scores(request, tokens)
        assert difference(scores, expected[1]) <= oracle.budget("scores", "float64")
        assert margin.min() > 10 * oracle.budget("scores", "float32")


@pytest.mark.sampled(3)
def test_our_backends_agree_in_all_that_they_generate(backend: Backend) -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Any:
        return backend(config, parameters, dtype="float32")

    found = CapabilityResult()
    for row in (GENERATION, BEAMS):
        found += compare_capability(row, built(build, "notes-lm"), whole("notes-lm"))
    assert (found.faults, found.not_compared) == ((), ())
    assert [(claim.id, claim.verdict) for claim in found.claims] == [
        ("generate", "agrees"),
        ("generate.uniforms", "agrees"),
        ("generate.sampling", "agrees"),
        ("generate.lengths", "agrees"),
        ("beam_search", "agrees"),
        ("beam_search.length_penalty", "agrees"),
    ]


def takes_no_keywords(method: Callable[..., Any]) -> Callable[..., Any]:
    def positional(*given: Any) -> Any:
        return method(*given)

    return positional


def test_what_a_port_does_not_take_is_not_compared() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        forward = numpy_build(config, parameters, dtype="float32")
        return Generating(
            config,
            parameters,
            generate=takes_no_keywords(forward.generate),
            beam_search=takes_no_keywords(forward.beam_search),
        )

    report = check(build, preset="notes-lm", logits_only=True)
    assert report.verdict == "agrees"
    for says in (
        "generate.uniforms: the port's generate takes no uniforms",
        "generate.sampling: the port's generate takes no uniforms and no sampling",
        "generate.lengths: the port's generate takes no lengths",
        "beam_search.length_penalty: the port's beam_search takes no length_penalty",
    ):
        assert says in report.not_compared


def test_what_goes_by_a_wrong_greedy_generation_is_not_compared() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        def generate(prompt: np.ndarray, steps: int, **named: Any) -> np.ndarray:
            return np.concatenate([prompt, np.ones((len(prompt), steps), int)], axis=1)

        return Generating(config, parameters, generate=generate)

    found = found_in(build, "notes-lm")
    assert [fault.where for fault in found.faults] == ["generate"]
    assert [says.partition(":")[0] for says in found.not_compared] == [way.claim for way in GENERATION.ways[1:]]


def test_draws_in_half_precision_are_not_compared() -> None:
    build = built(generating(simulate_generation), "notes-lm")
    found = compare_capability(GENERATION, build, whole("notes-lm", "bfloat16"))
    assert [claim.id for claim in found.claims] == ["generate", "generate.lengths"]
    assert any(says.startswith("generate.sampling: coarse rounding") for says in found.not_compared)


@pytest.mark.parametrize("error", [RuntimeError("no luck"), TypeError("no keyword, but no more is known")])
def test_what_a_way_raises_leaves_the_others_compared(error: Exception) -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        def generate(prompt: np.ndarray, steps: int, **named: Any) -> np.ndarray:
            if "sampling" in named:
                raise error
            return Generating(config, parameters).forward.generate(prompt, steps, **named)

        return Generating(config, parameters, generate=generate)

    found = found_in(build, "notes-lm")
    (fault,) = found.faults
    assert fault.where == "generate.sampling"
    assert f"raised {type(error).__name__}" in fault.causes[0].says
    agreeing = [claim.id for claim in found.claims if claim.verdict == "agrees"]
    assert agreeing == ["generate", "generate.uniforms", "generate.lengths"]


@pytest.mark.parametrize(("off", "says"), [(-1e-3, "right"), (1e-9, "a tie"), (1e-3, "wrong")])
def test_a_draw_at_a_boundary_is_a_tie_and_one_beyond_it_is_wrong(off: float, says: str) -> None:
    (request,) = drawing_requests(first_probe("notes-lm"))
    assert request.uniforms is not None
    tokens, uniforms = simulated_tokens(simulate_generation, request), request.uniforms.copy()
    uniforms[0, 0] = upper_end(request, tokens) + off
    found = judged(dataclasses.replace(request, uniforms=uniforms), tokens, "float32")
    place = f"token {request.prompt.shape[1]}, drawn"
    assert (found.share <= 1) == (says != "wrong")
    assert found.near == ((f"{place} is a tie to within rounding",) if says == "a tie" else ())
    assert says == "right" or found.where == place


def upper_end(request: Request, tokens: np.ndarray) -> float:
    """Upper end of the interval of the first sampled token of the first row."""
    context = {"tokens": tokens[:1, : request.prompt.shape[1]]}
    logits = np.asarray(numpy_build(request.config, request.parameters).logits(**context))[0, -1]
    weights = np.exp(logits - logits.max())
    return float(weights[: tokens[0, request.prompt.shape[1]] + 1].sum() / weights.sum())


def test_a_token_that_may_not_be_drawn_is_wrong_however_near_the_number() -> None:
    request = sampling_requests(first_probe("notes-lm"))[0]
    tokens = simulated_tokens(simulate_generation, request)
    errors = {token: judged(request, with_last(tokens, token), "float32").error for token in range(8, 18)}
    assert sum(np.isinf(error) for error in errors.values()) >= 2, "of ten tokens top_k leaves eight"
    assert judged(request, tokens, "float32").error == 0.0


def with_last(tokens: np.ndarray, token: int) -> np.ndarray:
    changed = tokens.copy()
    changed[0, -1] = token
    return changed


def test_a_score_that_is_not_the_tokens_own_is_wrong_and_so_are_worse_tokens() -> None:
    (request,) = beam_requests(first_probe("translation"))
    tokens, scores = simulated_beams(simulate_beam_search, request)
    right = judged_beams(request, tokens, scores, "float32")
    assert (right.share < 1, right.near) == (True, ())
    found = judged_beams(request, tokens, scores + 1e-3, "float32")
    assert (found.share > 1, found.where) == (True, "the scores, beams")
    greedy, of_greedy = simulated_beams(functools.partial(simulate_beam_search, begins_apart=False), request)
    found = judged_beams(request, greedy, of_greedy, "float32")
    assert (found.share > 1, found.where) == (True, "the tokens, beams")


def twinned(request: Request, token: int, twin: int, by: float) -> Request:
    """The same, but that wherever `token` comes to a logit, `twin` comes to one that is more `by` so much."""
    weight, bias = (request.parameters[f"head.{part}"].astype(np.float64) for part in ("weight", "bias"))
    weight[twin], bias[twin] = weight[token], bias[token] + by
    return dataclasses.replace(request, parameters=request.parameters | {"head.weight": weight, "head.bias": bias})


@pytest.mark.parametrize(("by", "says"), [(1e-7, "a tie"), (1e-2, "wrong")])
@pytest.mark.parametrize("options", [None, Sampling(top_k=1)], ids=["greedily", "drawn of one"])
def test_another_token_is_right_if_it_is_as_likely_to_within_rounding(
    by: float, says: str, options: Sampling | None
) -> None:
    (request,) = drawing_requests(first_probe("notes-lm"))
    request = dataclasses.replace(request, uniforms=request.uniforms if options else None, sampling=options)
    begin = request.prompt.shape[1]
    token = int(simulated_tokens(simulate_generation, request)[0, begin])
    twin = 5 if token != 5 else 6
    chosen = simulated_tokens(simulate_generation, twinned(request, token, twin, by))
    assert chosen[0, begin] == twin
    found = judged(twinned(request, token, twin, -by), chosen, "float32")
    assert (found.share <= 1) == (says == "a tie")
    assert bool(found.near) == (says == "a tie") or options is not None


@pytest.mark.parametrize(("by", "says"), [(1e-7, "a tie"), (1e-2, "wrong")])
def test_worse_beams_are_right_if_those_that_were_dropped_for_them_were_as_good_to_within_rounding(
    by: float, says: str
) -> None:
    (request,) = drawing_requests(first_probe("notes-lm"))
    request = dataclasses.replace(request, name="one beam", uniforms=None, beams=1, steps=3)
    token = int(simulated_beams(simulate_beam_search, request)[0][0, request.prompt.shape[1]])
    twin = 5 if token != 5 else 6
    worse = []
    for sign in (1, -1):  # one of the two is followed by what is worse
        tokens, _ = simulated_beams(simulate_beam_search, twinned(request, token, twin, sign * by))
        asked = twinned(request, token, twin, -sign * by)
        found = judged_beams(asked, tokens, true_scores(asked, tokens).expected["scores"], "float32")
        behind = (best_scores(asked) - true_scores(asked, tokens).expected["scores"]).max()
        if behind > found.budget:
            worse.append(found)
    assert worse
    assert all((found.share <= 1) == (says == "a tie") for found in worse)
    assert all(bool(found.near) == (says == "a tie") for found in worse)


@pytest.mark.parametrize(
    "answer",
    [lambda tokens, scores: tokens, lambda tokens, scores: (tokens, scores[:, None]), lambda *_: (1.0, 2.0)],
)
def test_anything_but_a_pair_of_tokens_and_scores_diverges(answer: Callable[..., Any]) -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Generating:
        right = Generating(config, parameters).forward

        def search(*given: Any) -> Any:
            return answer(*right.beam_search(*given))

        return Generating(config, parameters, beam_search=search)

    found = found_in(build, "notes-lm")
    (fault, *_) = found.faults
    assert (fault.where, fault.causes[0].mistake) == ("beam_search", "raises")
    assert "raised TypeError" in fault.causes[0].says


def test_ragged_prompts_are_asked_for_where_the_mask_hides() -> None:
    (request,) = ragged_requests(first_probe("translation"))
    assert len(set(request.begins.tolist())) > 1
    assert any(
        says.startswith("generate.lengths: this mask hides nothing")
        for says in found_in(generating(simulate_generation), "walkthrough").not_compared
    )
