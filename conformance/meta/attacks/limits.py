"""Attacks that were let through when all were last run, each with the reason; docs/red-team.md has their classes.

The runner fails on one that is caught after all, so that the list gets no longer than it has to be.
"""

from __future__ import annotations

REASONS = {
    "no call of a history has the same shape and the same key with other tokens": (
        "memoised-by-sum",
        "memoised-by-first-token",
        "memory-by-first-row",
    ),
    "the order of calls that shows it is not tried": ("smaller-batch-after-a-larger", "step-after-generate"),
    "a result is read before the next call, and inputs are copies": (
        "one-buffer-for-every-result",
        "targets-prepared-in-place",
        "tokens-changed-in-place",
    ),
    "two sequences are never decoded by turns": ("one-cache-for-all",),
    "a batch of one is not requested": (
        "beams-raise-for-a-row",
        "step-of-one-row",
        "generation-of-one-row",
        "loss-of-one-row",
        "source-of-one-row",
    ),
    "no request of the capability has this size or setting": (
        "chunks-of-four",
        "chunks-after-the-first",
        "one-new-token",
        "many-likeliest",
        "cold-temperature",
        "numbers-near-one",
        "end-in-the-prompt",
        "after-the-warm-up",
        "moments-of-five-steps",
    ),
    "drawn weights give no gradient, loss or logit of this size": (
        "gradients-clipped",
        "loss-of-hot-logits",
        "logits-clamped",
        "residual-clamped",
    ),
    "below the budget of bfloat16": (
        "scale-in-declared-bfloat16",
        "bias-in-declared-bfloat16",
        "shifted-by-half-a-logit",
        "eps-in-declared-bfloat16",
    ),
    "calls at other sizes have a time limit, a batch limit and few rows": (
        "powers-of-two",
        "rows-from-sixteen-on",
        "rows-sorted",
        "padded-to-eight",
    ),
    "a preset is checked at the size of probes, with few layers": ("layers-from-four-on",),
}

LET_THROUGH: dict[str, str] = {id: reason for reason, ids in REASONS.items() for id in ids}
