"""Attacks that were let through when all were last run, each with the reason; docs/red-team.md has their classes.

The runner fails on one that is caught after all, so that the list gets no longer than it has to be.
"""

from __future__ import annotations

REASONS = {
    "a result is read before the next call": ("one-buffer-for-every-result",),
    "no request of the capability has this setting": ("moments-of-five-steps",),
    "drawn weights give no gradient, loss or logit of this size": (
        "gradients-clipped",
        "loss-of-hot-logits",
        "logits-clamped",
        "residual-clamped",
    ),
    "below the budget of bfloat16": (
        "shifted-by-half-a-logit",
        "eps-in-declared-bfloat16",
    ),
    "calls at other sizes have a time limit, a batch limit and few rows": (
        "rows-from-sixteen-on",
        "padded-to-eight",
    ),
    "a preset is checked at the size of probes, with few layers": ("layers-from-four-on",),
}

LET_THROUGH: dict[str, str] = {id: reason for reason, ids in REASONS.items() for id in ids}
