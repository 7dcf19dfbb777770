"""Faults in beam search: scores and their ranking, continuations that have ended, and the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.faults import simulated
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import log_softmax
from transparity_numpy.decoding.generation import allocate
from transparity_numpy.decoding.steps import next_logits

Penalty = Callable[[np.ndarray, int, float], np.ndarray]
"""The divisor of scores, given the number of tokens added (batch, beams), the length of the prompt and the power."""


def length_penalty(added: np.ndarray, begun: int, power: float) -> np.ndarray:
    """((5 + added) / 6)^power (Wu et al. 2016, eq. 14)."""
    penalty: np.ndarray = ((5 + added) / 6) ** power
    return penalty


@dataclass(frozen=True)
class BeamRules:
    """The rules of a beam search: the reference's by default."""

    penalty: Penalty = length_penalty
    ranks: str = "by penalty"
    """The ranking of continuations: `by penalty`, `by score` (the penalty is applied last), or `ended by penalty`."""
    ended: str = "stay"
    """Continuations that have ended `stay`, `go on`, or are `dropped` for as long as others of their row go on."""
    begins_apart: bool = True
    """Whether only one of the beams, which begin alike, counts at the first step."""
    reorders_cache: bool = True
    """Whether a beam that continues another one sees the tokens of that one."""
    normalizes: bool = True
    """Whether scores add up log probabilities, not logits."""

    def rank(self, score: np.ndarray, divisor: np.ndarray, ended: np.ndarray, *, last: bool) -> np.ndarray:
        """Return the scores that continuations are ranked by; in the `last` ranking, those of the result."""
        always = self.ranks == "by penalty" or (self.ranks == "by score" and last)
        return score / np.where(always | ((self.ranks == "ended by penalty") & ended), divisor, 1.0)


def simulate_beam_search(
    config: TransformerConfig,
    parameters: Arrays,
    prompt: np.ndarray,
    steps: int,
    beams: int,
    *,
    length_penalty: float = 0.0,
    source: np.ndarray | None = None,
    **options: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Search with beams by the `BeamRules` that `options` give. Returns tokens (batch, length), scores (batch,) and the
    smallest margin (batch,) of a kept beam over a dropped one."""
    rules, (batch, begun), vocab = BeamRules(**options), prompt.shape, config.vocab_size
    tokens, lengths = allocate(config, np.repeat(prompt, beams, axis=0), None, steps)
    visible, source = tokens, None if source is None else np.repeat(source, beams, axis=0)
    ended, added, margin = np.zeros((batch, beams), bool), np.zeros((batch, beams), int), np.full(batch, np.inf)
    score = np.where((np.arange(beams) == 0) | (not rules.begins_apart), 0.0, -np.inf) * np.ones((batch, 1))
    after_end = np.where(np.arange(vocab) == config.filling_id, 0.0, -np.inf)
    for new in range(steps):
        logits = next_logits(config, parameters, visible, lengths + new, None, source, 0)
        following = (log_softmax(logits) if rules.normalizes else logits).reshape(batch, beams, vocab)
        stays = np.all(ended, axis=-1, keepdims=True)[..., None] | (rules.ended == "stay")
        scores = score[:, :, None] + np.where(ended[:, :, None], np.where(stays, after_end, -np.inf), following)
        added, ends = added + ~ended, ended[:, :, None] | (np.arange(vocab) == config.ending_id)
        order = rules.rank(scores, rules.penalty(added[:, :, None], begun, length_penalty), ends, last=False)
        best, ahead = _best(order.reshape(batch, -1), beams)
        margin = np.fmin(margin, ahead)
        beam, token = best // vocab, best % vocab
        score = np.take_along_axis(scores.reshape(batch, -1), best, axis=-1)
        added = np.take_along_axis(added, beam, axis=-1)
        ended = (np.take_along_axis(ended, beam, axis=-1) | (token == config.ending_id)) & (rules.ended != "go on")
        slots = (np.arange(batch)[:, None] * beams + beam).reshape(-1)
        tokens, visible = tokens[slots], visible[slots] if rules.reorders_cache else visible.copy()
        tokens[:, begun + new] = visible[:, begun + new] = token.reshape(-1)
        if ended.all():
            break
    final = rules.rank(score, rules.penalty(added, begun, length_penalty), ended, last=True)
    first = final.argmax(axis=-1)
    return tokens[np.arange(batch) * beams + first, : begun + new + 1], final.max(axis=-1), margin


def _best(order: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` best columns of each row, and how far (batch,) the last of them is ahead of the next one."""
    best = np.argsort(-order, axis=-1, kind="stable")[:, : count + 1]
    kept, dropped = np.take_along_axis(order, best[:, count - 1 :], axis=-1).T
    with np.errstate(invalid="ignore"):  # with fewer than `count` continuations, nothing is dropped
        return best[:, :count], kept - dropped


BEAM_FAULTS = simulated(
    simulate_beam_search,
    ("beams-penalty", "scores are divided by length^α, not by ((5 + length) / 6)^α", {"penalty": lambda n, _, a: n**a}),
    ("beams-penalty", "scores are not divided by any length penalty", {"penalty": lambda n, _, a: np.ones(n.shape)}),
    ("beams-penalty", "scores are multiplied by the length penalty", {"penalty": lambda n, _, a: ((5 + n) / 6) ** -a}),
    ("beams-penalty", "the prompt counts in the length penalty", {"penalty": lambda n, m, a: ((5 + n + m) / 6) ** a}),
    ("beams-penalty", "beams are kept by their scores without the length penalty", {"ranks": "by score"}),
    ("beams-penalty", "unfinished continuations are ranked without the length penalty", {"ranks": "ended by penalty"}),
    ("beams-end", "an ended continuation is extended", {"ended": "go on"}),
    ("beams-end", "an ended continuation is dropped", {"ended": "dropped"}),
    ("beams-begin", "all beams begin with the same token and stay the same: it is greedy", {"begins_apart": False}),
    ("beams-cache", "a beam that continues another one keeps its own cache", {"reorders_cache": False}),
    ("beams-score", "scores add up logits, not log probabilities", {"normalizes": False}),
)
