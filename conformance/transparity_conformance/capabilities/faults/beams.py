"""Mistakes in beam search: how continuations are scored and ranked, what becomes of those that ended, how it begins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.decoding import next_logits
from transparity_numpy.functional import log_softmax
from transparity_numpy.generation import with_room

Penalty = Callable[[np.ndarray, int, float], np.ndarray]
"""By what scores are divided: of so many tokens added (batch, beams), to so long a prompt, to this power."""


def length_penalty(added: np.ndarray, begun: int, power: float) -> np.ndarray:
    """((5 + added) / 6)^power (Wu et al. 2016, eq. 14)."""
    penalty: np.ndarray = ((5 + added) / 6) ** power
    return penalty


@dataclass(frozen=True)
class Beaming:
    """How beams are searched: as the reference does, but for what is said here."""

    id: str = ""
    says: str = ""
    penalty: Penalty = length_penalty
    ranks: str = "by penalty"
    """How continuations are ranked: `by penalty`, `by score` (the penalty comes in the end), or `ended by penalty`."""
    ended: str = "stay"
    """What becomes of continuations that ended: they `stay`, `go on`, or are `dropped`."""
    begins_apart: bool = True
    """Whether but one of the beams, which begin alike, counts at the first step."""
    reorders_cache: bool = True
    """Whether a beam that goes on from another one sees that one's tokens."""
    normalizes: bool = True
    """Whether logarithms of probabilities are added up, and not logits."""


BEAMINGS = (
    Beaming("beams-penalty", "scores are divided by length^α, not by ((5 + length) / 6)^α", lambda n, _, a: n**a),
    Beaming("beams-penalty", "scores are not divided by any length penalty", lambda n, _, a: np.ones(n.shape)),
    Beaming("beams-penalty", "scores are multiplied by the length penalty", lambda n, _, a: ((5 + n) / 6) ** -a),
    Beaming("beams-penalty", "the prompt counts in the length penalty", lambda n, m, a: ((5 + n + m) / 6) ** a),
    Beaming("beams-penalty", "beams are kept by their scores without the length penalty", ranks="by score"),
    Beaming("beams-penalty", "what has not ended is ranked without the length penalty", ranks="ended by penalty"),
    Beaming("beams-end", "a continuation that ended goes on", ended="go on"),
    Beaming("beams-end", "a continuation that ended is dropped", ended="dropped"),
    Beaming("beams-begin", "all beams begin with the same token and stay the same: it is greedy", begins_apart=False),
    Beaming("beams-cache", "a beam that goes on from another one keeps its own cache", reorders_cache=False),
    Beaming("beams-score", "scores add up logits, not logarithms of probabilities", normalizes=False),
)
"""The likeliest first."""


def beamed(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    steps: int,
    beams: int,
    power: float,
    source: np.ndarray | None,
    how: Beaming,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What a port that searches so would return, tokens (batch, length) and scores (batch,); and by how much (batch,)
    any beam that was kept was better than any that was not."""
    batch, vocab, begun = len(prompt), config.vocab_size, prompt.shape[1]
    each = np.repeat(np.arange(batch), beams)
    tokens, lengths = with_room(config, prompt[each], None, steps)
    seen, source = tokens, None if source is None else source[each]
    ended, added = np.zeros((batch, beams), bool), np.zeros((batch, beams), int)
    score = np.where((np.arange(beams) == 0) | (not how.begins_apart), 0.0, -np.inf) * np.ones((batch, 1))
    staying = np.where(np.arange(vocab) == config.filling_id, 0.0 if how.ended == "stay" else -np.inf, -np.inf)
    margin = np.full(batch, np.inf)

    def ranked(score: np.ndarray, added: np.ndarray, ended: np.ndarray, *, last: bool) -> np.ndarray:
        """Scores as they are ranked, of so many tokens added, some ended."""
        counts = how.ranks == "by penalty" or (how.ranks == "by score" and last)
        divided = counts | ((how.ranks == "ended by penalty") & ended)
        return score / np.where(divided, how.penalty(added, begun, power), 1.0)

    for new in range(steps):
        logits = next_logits(config, parameters, seen, lengths + new, None, source, 0)
        following = (log_softmax(logits) if how.normalizes else logits).reshape(batch, beams, vocab)
        scores = score[:, :, None] + np.where(ended[:, :, None], staying, following)
        added = added + ~ended
        ends = ended[:, :, None] | (np.arange(vocab) == config.ending_id)
        order = ranked(scores, added[:, :, None], ends, last=False).reshape(batch, -1)
        best = np.argsort(-order, axis=-1, kind="stable")[:, : beams + 1]
        kept, dropped = np.take_along_axis(order, best[:, beams - 1 :], axis=-1).T
        with np.errstate(invalid="ignore"):  # where there are fewer than `beams`, nothing is dropped
            margin = np.fmin(margin, kept - dropped)
        best = best[:, :beams]
        beam, token = best // vocab, best % vocab
        score = np.take_along_axis(scores.reshape(batch, -1), best, axis=-1)
        added = np.take_along_axis(added, beam, axis=-1)
        if how.ended != "go on":
            ended = np.take_along_axis(ended, beam, axis=-1) | (token == config.ending_id)
        slots = (np.arange(batch)[:, None] * beams + beam).reshape(-1)
        tokens, seen = tokens[slots], seen[slots] if how.reorders_cache else seen.copy()
        for history in (tokens, seen):
            history[:, begun + new] = token.reshape(-1)
        if ended.all():
            break
    final = ranked(score, added, ended, last=True)
    best = final.argmax(axis=-1)
    written = tokens[np.arange(batch) * beams + best, : begun + new + 1]
    return written, np.take_along_axis(final, best[:, None], axis=-1)[:, 0], margin
