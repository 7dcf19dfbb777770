"""Mistakes in attention: its scale, and how heads are cut and put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

from transparity.attention import attention_weights, hidden_score, merge_heads, score_scale
from transparity.config import TransformerConfig
from transparity_conformance.mistakes.masks import right_mask, scores_at
from transparity_conformance.mistakes.places import Value, apply_linear, split, sublayer_input
from transparity_conformance.walk import Mistake, Run


def mistakes(config: TransformerConfig, site: str) -> Iterator[Mistake]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention"):
        return
    if tap == "scores":
        for name, scale in SCALES.items():
            if not math.isclose(scale(config), score_scale(config), rel_tol=1e-9):
                yield scaled(config, scale(config), name)
    if tap in ("query", "key", "value") and config.num_heads > 1:
        for name, (wrong, says) in SPLITS.items():
            kind = "head-split" if name == "view" else "head-order"
            yield Mistake(kind, f"split by {name}", says, patch=partial(_split, wrong))
    if tap == "context" and config.num_heads > 1:
        for name, (merge, says) in MERGES.items():
            kind = "head-split" if name == "view" else "head-order"
            yield Mistake(kind, f"merged by {name}", says, patch=partial(_merged, merge))
    if tap in ("query", "key", "value", "context") and config.num_heads > 1:
        says = "heads are interleaved, (head_dim, heads) instead of (heads, head_dim), in splitting and in merging"
        yield Mistake("head-order", "split and merged interleaved", says, patch=_interleaved_throughout)


SCALES: dict[str, Callable[[TransformerConfig], float]] = {
    "1/√head_dim": lambda config: config.head_dim**-0.5,
    "1/√embed_dim": lambda config: config.embed_dim**-0.5,
    "1 (none)": lambda config: 1.0,
    "the scale twice": lambda config: score_scale(config) ** 2,
    "1/head_dim": lambda config: 1 / config.head_dim,
    "1/embed_dim": lambda config: 1 / config.embed_dim,
    "1/√num_heads": lambda config: config.num_heads**-0.5,
    "the scale's inverse": lambda config: 1 / score_scale(config),
    "1/√(head_dim + 1)": lambda config: (config.head_dim + 1) ** -0.5,
    "1/√(embed_dim + 1)": lambda config: (config.embed_dim + 1) ** -0.5,
    "1/√max_length": lambda config: config.max_length**-0.5,
}
"""What people multiply scores by, the likeliest first."""


def named_scale(config: TransformerConfig, scale: float, tolerance: float = 1e-4) -> str:
    """`1/√48` for 0.1443, if the number has a name."""
    if scale > 0 and math.isclose(round(scale**-2), scale**-2, rel_tol=tolerance) and round(scale**-2) > 1:
        return f"1/√{round(scale**-2)}"
    return ""


def scaled(config: TransformerConfig, scale: float, named: str) -> Mistake:
    """Scores multiplied by `scale` instead of the right one; by what has the name, in a model of another size."""
    right = score_scale(config)
    kind = "head_dim" if config.attention_scale == "head_dim" else "embed_dim"
    by = f"{named} ({scale:.4g})" if named else f"{scale:.6g}"
    says = f"your scores are {scale / right:.4f} × ours: scaled by {by} instead of 1/√{kind} ({right:.4g})"
    change = partial(_scaled, SCALES.get(named, lambda config: scale))
    # What hides scores before they are scaled is scaled with them; that shows if it hides by half.
    beside = ("weights",) if config.mask_order == "before-scale" and 0 > config.mask_value > -1e3 else ()
    return Mistake("attention-scale", named or f"{scale:.6g}", says, patch=change, beside=beside, value=scale)


def _scaled(scale: Callable[[TransformerConfig], float], run: Run, site: str, value: Value) -> Value:
    ratio = scale(run.config) / score_scale(run.config)
    if site.endswith(".weights"):
        return attention_weights(scores_at(run, site), right_mask(run, site), hidden_score(run.config) * ratio)
    return value * value.dtype.type(ratio)


def view(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, num_heads, length, features // num_heads)


def interleaved(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, length, features // num_heads, num_heads).transpose(0, 3, 1, 2)


SPLITS: dict[str, tuple[Callable[[Value, int], Value], str]] = {
    "view": (view, "features are cut into heads by a view alone, without the transpose"),
    "interleaved": (
        interleaved,
        "heads are interleaved, (head_dim, heads) instead of (heads, head_dim), where they split",
    ),
}

MERGES: dict[str, tuple[Callable[[Value], Value], str]] = {
    "view": (
        lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1),
        "heads are merged by a view alone, without the transpose",
    ),
    "interleaved": (
        lambda heads: heads.transpose(0, 2, 3, 1).reshape(heads.shape[0], heads.shape[2], -1),
        "heads are interleaved, (head_dim, heads) instead of (heads, head_dim), where they merge",
    ),
}


def _split(wrong: Callable[[Value, int], Value], run: Run, site: str, value: Value) -> Value:
    scope, sublayer, role = split(site)
    if run.config.projection == "full":
        return wrong(merge_heads(value), run.config.num_heads)
    x = sublayer_input(run, scope, sublayer, role)
    return apply_linear(run, site, wrong(x, run.config.num_heads))


def _merged(merge: Callable[[Value], Value], run: Run, site: str, value: Value) -> Value:
    scope = site.rpartition(".")[0]
    return merge(run.seen[f"{scope}.weights"] @ run.seen[f"{scope}.value"])


def _interleaved_throughout(run: Run, site: str, value: Value) -> Value:
    if site.endswith(".context"):
        return _merged(MERGES["interleaved"][0], run, site, value)
    return _split(interleaved, run, site, value)
