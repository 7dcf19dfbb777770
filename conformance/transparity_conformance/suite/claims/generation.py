"""Claims about generation: greedy decoding, sampling with shared random numbers, and beam search."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.sampling import Sampling
from transparity_conformance.capabilities.decoding.teacher_forcing import behind, misplaced, true_scores
from transparity_conformance.capabilities.requests import Request
from transparity_conformance.oracle.backends import REFERENCE, backend
from transparity_conformance.oracle.budgets import WIDE, epsilon
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probe_parameters, probes
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.forward import mixed

ROWS, NEW, LONGEST = 3, 6, 4

ENDINGS = (1.0, 5.0)
"""Numbers that are added to the logit of the end token, so that continuations end early or immediately."""

RECURRENT = ("qwen3-next", "mamba2")
"""Cases whose cache contains a recurrent state."""

WAYS = ("translation", "notes-lm", "walkthrough")
"""Presets that differ in generation: some have a cache, a source or an end token."""

EVERY_WAY = (*WAYS, *RECURRENT)


Prompted = tuple[TransformerConfig, Arrays, np.ndarray, np.ndarray | None]


def prompted(case: str, heads: int | None = None) -> Prompted:
    """Return a small model with a short `max_length`, a prompt and, for an encoder-decoder, a source."""
    probe = mixed(case) if case in CASES else probes(case)["mixed"]
    config = probe.config
    config = config.with_sizes(max_length=LONGEST, num_heads=heads or config.num_heads)
    parameters = probe_parameters(config, 7)
    source = probe.inputs["source"][:ROWS, : config.max_length] if config.has_encoder else None
    prompt = np.arange(1, ROWS + 1)[:, None] if config.bos_id is None else np.full((ROWS, 1), config.bos_id)
    return config, parameters, prompt, source


def likeliest(bench: Bench, case: str, model: Prompted) -> Iterator[ClaimEvidence]:
    config, parameters, prompt, source = model
    tokens = bench.forward(config, parameters).generate(prompt, NEW, source=source)
    request = Request(case, config, parameters, prompt, NEW, source)
    record = bench.evidence(case)
    errors, budget = behind(request, tokens, bench.subject.dtype)
    for step, error in enumerate(errors.T):
        yield record.within(f"token {1 + step}", error, np.zeros(ROWS), budget)
    yield record.exactly("prompt", tokens[:, :1], prompt)
    yield record.exactly("padding and length", misplaced(request, tokens) == "", True)


def same_tokens(bench: Bench, case: str, model: Prompted, where: str = "tokens", **how: Any) -> ClaimEvidence:
    """Compare the tokens that the backend and the reference generate."""
    config, parameters, prompt, source = model
    truth = backend(REFERENCE)(config, parameters).generate(prompt, NEW, source=source, **how)
    tokens = bench.forward(config, parameters).generate(prompt, NEW, source=source, **how)
    return bench.evidence(case).exactly(where, tokens, truth)


@claim(quick=("float64",), cases=("translation",), all_cases=(*PRESETS, *RECURRENT), all_in=("float32",))
def greedy(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Each generated token has the largest logit in float64, up to rounding (document 004)."""
    yield from likeliest(bench, case, prompted(case))


@claim(dtypes=("float64",), cases=("translation",), all_cases=PRESETS, all_in=("float64",))
def stops_at_end_token(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """A row ends with `<eos>` and padding, and generation stops as soon as all rows have ended (document 004)."""
    if PRESETS[case].config.eos_id is not None:
        config, parameters, prompt, source = prompted(case)
        bias = parameters["head.bias"].copy()
        for push in (0.6, 1.2, 30.0):  # some rows end, all rows end, all rows end immediately
            bias[config.eos_id] = push
            changed = parameters | {"head.bias": bias.copy()}
            yield same_tokens(bench, case, (config, changed, prompt, source), f"tokens with {push:g} on <eos>")


@claim(dtypes=("float64",))
def crops_context(bench: Bench) -> Iterator[ClaimEvidence]:
    """If a prompt exceeds `max_length`, only its last `max_length` tokens affect new tokens (document 001)."""
    config, parameters, _, _ = prompted("notes-lm")
    prompt = np.random.default_rng(3).integers(1, config.vocab_size, (ROWS, config.max_length + 4))
    generate = bench.forward(config, parameters).generate
    whole, end = generate(prompt, 3), generate(prompt[:, -config.max_length :], 3)
    record = bench.evidence("notes-lm")
    yield record.exactly("new tokens", whole[:, -3:], end[:, -3:])
    yield record.exactly("prompt", whole[:, :-3], prompt)


@claim(dtypes=WIDE, of_reference=True, harness=True)
def sampled_tokens(bench: Bench) -> Iterator[ClaimEvidence]:
    """A sampled token is the first token whose cumulative probability exceeds the given uniform random number."""
    random = np.random.default_rng(4)
    logits, uniforms = (2 * random.normal(size=(500, 13))).astype(np.float32), random.random(500)
    logits[:50, :3] = -np.inf  # the random number 0 must not select a token with the probability 0
    uniforms[:60] = 0.0
    probabilities = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True).astype(np.float64))
    cumulative = np.cumsum(probabilities / probabilities.sum(-1, keepdims=True), -1)
    truth = [
        next(i for i, total in enumerate(row) if total > draw) for row, draw in zip(cumulative, uniforms, strict=True)
    ]
    tokens = bench.function("decoding.generation.sampled_tokens")(logits, uniforms)
    record = bench.evidence("drawn logits")
    yield record.exactly("tokens", tokens, truth)
    highest = np.full(len(logits), np.nextafter(1, 0))  # float32 rounds this number to 1
    tokens = bench.function("decoding.generation.sampled_tokens")(logits, highest)
    yield record.exactly("tokens for the highest number", tokens, np.full(len(logits), logits.shape[1] - 1))
    ties = np.array([[0, 5, 5, 1], [2, 2, 2, 2]], np.float32)
    yield record.exactly("the first of equal logits", bench.function("decoding.generation.greedy_tokens")(ties), [1, 0])


@claim(dtypes=("float64",), cases=("notes-lm",), all_cases=PRESETS, all_in=("float64",))
def sampling(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """With shared random numbers, sampling generates the same text, token for token (document 001)."""
    uniforms = np.random.default_rng(5).random((ROWS, NEW))
    yield same_tokens(bench, case, prompted(case), uniforms=uniforms)


SAMPLINGS = {
    "temperature 0.5": Sampling(temperature=0.5),
    "top_k 4": Sampling(top_k=4),
    "top_k 1": Sampling(top_k=1),
    "top_p 0.6": Sampling(top_p=0.6),
    "top_p 0.5": Sampling(top_p=0.5),
    "temperature 2, top_k 6, top_p 0.8": Sampling(2.0, 6, 0.8),
}


def _drawable(row: list[float], sampling: Sampling) -> list[float]:
    row = [(x - max(row)) / sampling.temperature for x in row]
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))[: sampling.top_k]
    weights = [math.exp(row[token] - max(row)) for token in ranked]
    kept, total = set(), 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if total < sampling.top_p:
            kept.add(token)
        total += weight / sum(weights)
    return [x if token in kept else -math.inf for token, x in enumerate(row)]


@claim(dtypes=WIDE, of_reference=True, harness=True)
def drawable(bench: Bench) -> Iterator[ClaimEvidence]:
    """Temperature, top-k and top-p apply in this order; among equal logits, lower token ids are kept."""
    logits = (2 * np.random.default_rng(6).normal(size=(60, 40))).astype(np.float32)
    logits[:9] = np.round(logits[:9])  # ties
    logits[9] = -np.inf
    logits[9, [2, 5]] = 0  # both tokens have the probability 0.5, so the first reaches `top_p=0.5`
    for name, sampling in SAMPLINGS.items():
        expected = np.array([_drawable(row, sampling) for row in logits.astype(float).tolist()])
        result = as_numbers(bench.function("decoding.generation.filter_logits")(logits, sampling))
        record = bench.evidence(name)
        yield record.exactly("tokens", np.isfinite(result), np.isfinite(expected))
        left = np.where(np.isfinite(expected), expected, 0)
        budget = epsilon(bench.subject.dtype) * float(np.abs(left).max())
        yield record.within("logits", np.where(np.isfinite(result), result, 0), left, budget)


@claim(
    dtypes=("float64",), of_reference=True, quick=(), cases=("translation",), all_cases=EVERY_WAY, all_in=("float64",)
)
def ragged_prompts(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Each prompt in a batch of prompts with different lengths continues as in a batch of one, also beyond
    `max_length`."""
    config, parameters, _, source = prompted(case)
    if config.prefixes_agree:
        random = np.random.default_rng(8)
        prompt, lengths = random.integers(3, config.vocab_size, (ROWS, 3)), np.array([1, 3, 2])
        uniforms = random.random((ROWS, NEW))
        forward, record = bench.forward(config, parameters), bench.evidence(case)
        filled_up = np.where(np.arange(prompt.shape[1]) < lengths[:, None], prompt, config.filling_id)
        nothing_new = forward.generate(prompt, 0, lengths=lengths, source=source)
        yield record.exactly("nothing new", nothing_new, filled_up)
        for how, draws in (("greedy", None), ("drawn", uniforms)):
            together = forward.generate(prompt, NEW, lengths=lengths, source=source, uniforms=draws)
            for row, length in enumerate(lengths):
                given = {"source": source, "uniforms": draws}
                own: dict[str, Any] = {k: None if v is None else v[row : row + 1] for k, v in given.items()}
                alone = forward.generate(prompt[row : row + 1, :length], NEW, **own)
                filled = np.full(together.shape[1], config.filling_id)
                filled[: alone.shape[1]] = alone[0]
                yield record.exactly(f"row {row}, {how}", together[row], filled)


@claim(dtypes=("float64",), quick=())
def sampling_options(bench: Bench) -> Iterator[ClaimEvidence]:
    """With shared random numbers, sampling generates the same text for every temperature, top-k and top-p."""
    model, uniforms = prompted("translation"), np.random.default_rng(5).random((ROWS, NEW))
    for name, sampling in SAMPLINGS.items():
        yield same_tokens(bench, name, model, uniforms=uniforms, sampling=sampling)


def _beams(bench: Bench, case: str, ending: float) -> Iterator[ClaimEvidence]:
    config, parameters, prompt, source = prompted(case)
    if ending:
        parameters["head.bias"][config.eos_id] += ending
    forward, reference = bench.forward(config, parameters), backend(REFERENCE)(config, parameters)
    greedy, record = forward.generate(prompt, NEW, source=source), bench.evidence(case)
    one_beam, _ = forward.beam_search(prompt, NEW, 1, source=source)
    yield record.exactly("one beam is greedy", one_beam, greedy)
    for beams, power in ((2, 0.0), (3, 0.0), (3, 0.8), (3, 3.0)):
        tokens, scores = forward.beam_search(prompt, NEW, beams, length_penalty=power, source=source)
        truth, expected = reference.beam_search(prompt, NEW, beams, length_penalty=power, source=source)
        yield record.exactly(f"tokens of {beams} beams, length penalty {power:g}", tokens, truth)
        asked = Request("beams", config, parameters, prompt, NEW, source, beams=beams, length_penalty=power)
        budget = true_scores(asked, truth).budget("scores", bench.subject.dtype)
        yield record.within(f"scores of {beams} beams, length penalty {power:g}", scores, expected, budget)


@claim(dtypes=("float64",), quick=(), cases=("translation",), all_cases=EVERY_WAY, all_in=("float64",))
def beam_search(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Beam search finds the same continuation as the reference, token for token, with the same score."""
    for ending in (0.0, *ENDINGS) if case == "translation" else (0.0,):
        yield from _beams(bench, case, ending)


@claim(dtypes=("float64",), of_reference=True, quick=())
def ties_between_beams(bench: Bench) -> Iterator[ClaimEvidence]:
    """Among equally likely tokens, beam search takes the first token."""
    config, _, prompt, _ = prompted("notes-lm")
    # Use many tokens: NumPy sorts short arrays stably, which would hide a wrong order of ties.
    config = config.resized(target_vocab_size=200)
    parameters = probe_parameters(config, 7)
    parameters["head.weight"][:] = 0
    parameters["head.bias"][:] = -(np.arange(config.vocab_size) % 2)
    tokens, _ = bench.forward(config, parameters).beam_search(prompt, NEW, 3)
    yield bench.evidence("notes-lm").exactly("tokens", tokens[:, 1:], np.zeros((ROWS, NEW)))
