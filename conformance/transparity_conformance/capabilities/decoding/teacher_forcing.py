"""Teacher forcing: compare each token of a port with the reference's logits, given the port's own earlier tokens.

A greedy token is right if it has the largest logit, within rounding. A sampled token is right if its random number
selects this token, within rounding. A wrong token does not make later tokens wrong.
"""

import numpy as np

from transparity.sampling import Sampling
from transparity.taps import Tap
from transparity_conformance.capabilities.capability import Judged, kept_in
from transparity_conformance.capabilities.faults import edited
from transparity_conformance.capabilities.requests import Request, following, simulated
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.report.comparison import SHARE
from transparity_numpy.arithmetic.functional import log_softmax, softmax
from transparity_numpy.decoding.beams import beam_search
from transparity_numpy.decoding.generation import filter_logits


def new_tokens(request: Request, tokens: np.ndarray) -> np.ndarray:
    steps = max(0, min(request.steps, tokens.shape[1] - request.prompt.shape[1]))
    return np.take_along_axis(tokens, request.begins[:, None] + np.arange(steps), axis=1)


def counted(request: Request, new: np.ndarray) -> np.ndarray:
    """Return a mask (batch, steps) of the new tokens up to and including the end token."""
    ends = new == request.config.ending_id
    return np.cumsum(ends, axis=1) - ends == 0


def misplaced(request: Request, tokens: np.ndarray) -> str:
    """Describe the first violation of the rules for generated tokens; return an empty text without a violation.

    The prompt must be unchanged, all tokens must be in the vocabulary, and rows must be padded after their end. If all
    rows have ended, no token may follow.
    """
    config, prompt, begins = request.config, request.prompt, request.begins
    width = prompt.shape[1]
    given = np.arange(width) < begins[:, None]
    if len(tokens) != len(prompt) or tokens.shape[1] < width or (tokens[:, :width] != prompt)[given].any():
        return f"the prompt, {request.name}"
    if tokens.min() < 0 or tokens.max() >= config.vocab_size:
        return f"a token outside the vocabulary, {request.name}"
    new = new_tokens(request, tokens)
    counts, all_ended = counted(request, new).sum(axis=1), bool((new == config.ending_id).any(axis=1).all())
    end = width + (int(counts.max()) if all_ended else request.steps)
    # A shorter beam may be better, but the array can have the width of the longest beam.
    longest = end if request.beams in (None, 1) else width + request.steps
    if tokens.shape[1] > longest and all_ended:
        return f"token {longest}, {request.name}: decoding continued after every row had ended"
    if not end <= tokens.shape[1] <= longest:
        return f"the length, {request.name}"
    filling = np.arange(tokens.shape[1]) >= (begins + counts)[:, None]
    wrong = np.flatnonzero((filling & (tokens != config.filling_id)).any(axis=0))
    return f"token {wrong[0]}, {request.name}: no padding after the end of a row" if wrong.size else ""


def judged(request: Request, tokens: np.ndarray, dtype: str) -> Judged:
    """Return the error of the first wrong token or, if no token is wrong, the largest error. A wrong prompt, padding or
    length has an infinite error. The error is cached, because a repeated request usually returns equal tokens."""
    return _judged(request, tokens.astype(np.int64).tobytes(), tokens.shape, dtype)


@kept_in(0)
def _judged(request: Request, content: bytes, shape: tuple[int, ...], dtype: str) -> Judged:
    tokens = np.frombuffer(content, np.int64).reshape(shape)
    if where := misplaced(request, tokens):
        return Judged(np.inf, 0.0, where)
    errors, budget = (behind if request.uniforms is None else outside)(request, tokens, dtype)
    worst = errors.max(axis=0)
    over = np.flatnonzero(worst > budget)
    step = int(over[0]) if over.size else int(worst.argmax())
    return Judged(float(worst[step]), budget, f"token {request.prompt.shape[1] + step}, {request.name}")


def behind(request: Request, tokens: np.ndarray, dtype: str) -> tuple[np.ndarray, float]:
    """Return the largest logit minus the new token's logit, with the shape (batch, steps), and the tolerance."""
    new = new_tokens(request, tokens)

    def run(parameters: Arrays, tap: Tap) -> None:
        tap("logits", following(request, parameters, tokens, new.shape[1]))

    oracle = Oracle(run, request.parameters, neighbours=1)
    logits = oracle.expected["logits"]
    errors = logits.max(axis=-1) - _of(logits, new)
    return np.where(counted(request, new), errors, 0.0), 2 * oracle.budget("logits", dtype)


def outside(request: Request, tokens: np.ndarray, dtype: str) -> tuple[np.ndarray, float]:
    """Return the distance (batch, steps) of each random number from the interval of the sampled token, and the
    tolerance. The distance is infinite if the token cannot be sampled. If rounding may change which tokens can be
    sampled, the distance is at most the tolerance."""
    assert request.uniforms is not None
    new, sampling = new_tokens(request, tokens), request.sampling or Sampling()
    steps = new.shape[1]
    exact = following(request, request.exact, tokens, steps)
    may = np.isfinite(filter_logits(exact.reshape(-1, exact.shape[-1]), sampling)).reshape(exact.shape)

    def run(parameters: Arrays, tap: Tap) -> None:
        is_exact = all(value.dtype == np.float64 for value in parameters.values())
        logits = exact if is_exact else following(request, parameters, tokens, steps)
        logits = logits / logits.dtype.type(sampling.temperature)
        ranked = tap("ranked", -np.sort(-logits, axis=-1))
        tap("reached", softmax(ranked[..., : sampling.top_k]).cumsum(axis=-1))
        # Decide in float64 which tokens can be sampled. The tolerance of the sums then covers only rounding.
        tap("cumulative", softmax(np.where(may, logits, -np.inf)).cumsum(axis=-1))

    oracle = Oracle(run, request.parameters, neighbours=1)
    budget, cumulative = oracle.budget("cumulative", dtype), oracle.expected["cumulative"]
    begins = np.concatenate([np.zeros_like(cumulative[..., :1]), cumulative[..., :-1]], axis=-1)
    uniforms = request.uniforms[:, :steps]
    errors = np.maximum(0.0, np.maximum(_of(begins, new) - uniforms, uniforms - _of(cumulative, new)))
    errors = np.where(_of(may, new), errors, np.inf)
    errors = np.where(_cut_is_a_tie(oracle, sampling, dtype), np.minimum(errors, budget), errors)
    return np.where(counted(request, new), errors, 0.0), budget


def _cut_is_a_tie(oracle: Oracle, sampling: Sampling, dtype: str) -> np.ndarray:
    """Return a mask (batch, steps): true where rounding may change which tokens can be sampled."""
    ranked, reached = oracle.expected["ranked"], oracle.expected["reached"]
    tie = np.zeros(ranked.shape[:-1], bool)
    if sampling.top_k is not None and sampling.top_k < ranked.shape[-1]:
        last, next_one = ranked[..., sampling.top_k - 1], ranked[..., sampling.top_k]
        tie |= last - next_one <= 2 * oracle.budget("ranked", dtype)
    if sampling.top_p < 1:
        tie |= (np.abs(reached - sampling.top_p) <= oracle.budget("reached", dtype)).any(axis=-1)
    return tie


def judged_beams(request: Request, tokens: np.ndarray, scores: np.ndarray, dtype: str) -> Judged:
    """Compare the port's scores with its tokens' true scores, and the true scores with the best beams' scores."""
    if where := misplaced(request, tokens):
        return Judged(np.inf, 0.0, where)
    oracle, scores = true_scores(request, tokens), scores.astype(np.float64)
    true, budget = oracle.expected["scores"], oracle.budget("scores", dtype)
    of_scores = Judged(float(np.abs(scores - true).max()), budget, f"the scores, {request.name}")
    # Both scores may be wrong by the tolerance, so their difference may be wrong by twice the tolerance.
    worse = np.maximum(0.0, simulated(beam_search, request)[1] - true)
    tied = worse
    if (worse > 2 * budget).any():
        tied = np.where(margins(request) <= 2 * budget, np.minimum(worse, 2 * budget), worse)
    return max(Judged(float(tied.max()), 2 * budget, f"the tokens, {request.name}"), of_scores, key=SHARE)


def true_scores(request: Request, tokens: np.ndarray) -> Oracle:
    """Return an oracle of `scores` (batch,): log P(tokens) / ((5 + number of new tokens) / 6)^length_penalty."""
    new = new_tokens(request, tokens)
    counts = counted(request, new)
    penalty = ((5 + counts.sum(axis=1)) / 6) ** request.length_penalty

    def run(parameters: Arrays, tap: Tap) -> None:
        chosen = _of(log_softmax(following(request, parameters, tokens, new.shape[1])), new)
        tap("scores", np.where(counts, chosen, 0).sum(axis=1) / penalty.astype(chosen.dtype))

    return Oracle(run, request.parameters, neighbours=1)


@kept_in(0)
def margins(request: Request) -> np.ndarray:
    """Return the smallest difference (batch,) between the scores of a kept and a dropped continuation in a beam search.

    If rounding can change the sign of this difference, a port may keep the continuation that the reference drops, and
    end with a worse score.
    """
    margins, beams = np.full(len(request.prompt), np.inf), request.beams or 1

    def noted(ranked: np.ndarray) -> np.ndarray:
        kept, dropped = -np.sort(-ranked, axis=-1)[:, beams - 1 : beams + 1].T
        with np.errstate(invalid="ignore"):  # −∞ − (−∞) if nothing is dropped
            np.fmin(margins, kept - dropped, out=margins)
        return ranked

    edit = "np.argsort(-ranked,", "np.argsort(-noted(ranked),"
    simulated(edited((edit,), "decoding.beams.beam_search", noted=noted), request)
    return margins


def _of(values: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, tokens[..., None], axis=-1)[..., 0]
