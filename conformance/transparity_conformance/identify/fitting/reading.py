"""The fields of attention: normed and rotated heads, the scale, and what positions do to scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.found import FoundFields
from transparity_conformance.identify.fitting.parts import Parts, Stack
from transparity_conformance.identify.fitting.structure import Attention
from transparity_conformance.identify.fitting.subject import FitError, FittedModel
from transparity_conformance.identify.fitting.values.norms import Norms
from transparity_conformance.identify.fitting.values.numbers import DIGITS, SAME, difference, digits, settle
from transparity_conformance.identify.fitting.values.rotary import rotary, rotated_among
from transparity_conformance.identify.fitting.values.scores import (
    Scale,
    Scores,
    bias_by_distance,
    raw_scores,
    same_where_known,
    scale_of,
    scores_of,
)
from transparity_conformance.listening.operation import Operation
from transparity_numpy.positions import alibi_slopes, relative_buckets

USUAL_DISTANCES = (128, 64, 256)

FEW = 4
"""Rotated features, of which one angle is left for rope_theta and scaling."""


@dataclass(frozen=True, eq=False)
class Heads:
    """The first self-attention of a stack: its query and key as they meet, its scores and their scale."""

    attention: Attention
    query: np.ndarray
    key: np.ndarray
    scores: Scores
    scale: Scale
    raw: np.ndarray
    own: np.ndarray
    """query · key of tokens with themselves, and their scores, without a bias."""
    table: str | None
    """The table of relative positions, if it has one."""

    @property
    def left(self) -> np.ndarray:
        """What is added to the scores, 0 where they are masked."""
        left = self.scores.values - self.scale(raw_scores(self.query, self.key))
        return np.where(np.broadcast_to(self.scores.masked[:, None], left.shape), 0.0, left)


def read_attention(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    """Add the fields of heads, scale and positions inside attention."""
    normed = _normed(found, subject, parts)
    for stack in [each for each in parts.stacks.values() if each.attentions()]:
        heads = _heads(subject, parts, stack, normed)
        read_scale(found, heads)
        _read_positions(found, subject, parts, stack, heads)


def _normed(found: FoundFields, subject: FittedModel, parts: Parts) -> dict[str, np.ndarray]:
    """The query and key of every attention, normed if heads are, by our names."""
    result: dict[str, np.ndarray] = {}
    taken = {id(value) for value in found.parameters.values()}
    vectors = {name: value for name, value in subject.values.items() if value.ndim == 1 and id(value) not in taken}
    for stack in parts.stacks.values():
        for name, each in stack.sublayers:
            if not isinstance(each, Attention):
                continue
            between = parts.heard.operations[each.begins : each.softmax.at]
            for role in ("query", "key"):
                x = each.split(getattr(each, role))
                made, vector = _head_norm(x, vectors, between)
                if vector is None:
                    made, vector = _norm_of_all_heads(x, vectors, between)
                    found.fields["query_key_norm_over"] = "head" if vector is None else "projection"
                result[f"{name}.{role}"] = made
                if vector is not None:
                    found.parameters[f"{name}.{role}_norm.weight"] = vectors.pop(vector)
                found.fields["query_key_norm"] = vector is not None
    return result


def _head_norm(
    x: np.ndarray, vectors: Mapping[str, np.ndarray], operations: Sequence[Operation]
) -> tuple[np.ndarray, str | None]:
    """An RMS norm of heads (batch, heads, length, head_dim) among the operations, with its vector; else `x`."""
    norms = Norms({name: value for name, value in vectors.items() if value.shape == x.shape[-1:]})
    if norms.vectors:
        for rows in (x, x.swapaxes(1, 2)):
            for operation in operations:
                if operation.value.size != x.size:
                    continue
                norm = norms.between(rows.reshape(-1, x.shape[-1]), operation.value.reshape(-1, x.shape[-1]))
                if norm is not None and norm.kind == "rms":
                    made = operation.value.reshape(rows.shape)
                    return (made if rows is x else made.swapaxes(1, 2)), norm.names[0]
    return x, None


def _norm_of_all_heads(
    x: np.ndarray, vectors: Mapping[str, np.ndarray], operations: Sequence[Operation]
) -> tuple[np.ndarray, str | None]:
    """An RMS norm of all heads together among the operations, as `_head_norm` finds one of each."""
    batch, heads, length, head_dim = x.shape
    flat = x.swapaxes(1, 2).reshape(batch, 1, length, heads * head_dim)
    made, vector = _head_norm(flat, vectors, operations)
    return made.reshape(batch, length, heads, head_dim).swapaxes(1, 2), vector


def _heads(subject: FittedModel, parts: Parts, stack: Stack, normed: Mapping[str, np.ndarray]) -> Heads:
    """The first self-attention of a stack, with the table of relative positions that explains its scores."""
    name, attention = next(
        (name, each) for name, each in stack.sublayers if isinstance(each, Attention) and "self" in name
    )
    scores = scores_of(attention.softmax, parts.heard.operations, attention.begins)
    query, key = normed[f"{name}.query"], normed[f"{name}.key"]
    raw, own = (np.diagonal(each, 0, -2, -1) for each in (raw_scores(query, key), scores.values))
    shown = np.broadcast_to(~np.diagonal(scores.masked, 0, -2, -1)[:, None], raw.shape)
    tables = [each for each, value in subject.values.items() if value.ndim == 2 and value.shape[1] == attention.heads]
    tried: list[tuple[float, int, Scale, str | None, np.ndarray]] = []
    for table in (None, *tables):
        bias = 0.0 if table is None else subject.values[table][0][None, :, None]
        scale = scale_of(raw[shown], (own - bias)[shown])
        tried.append(
            (difference(scale(raw[shown]), (own - bias)[shown]), len(tried), scale, table, (own - bias)[shown])
        )
    least, _, scale, best, without_bias = min(tried, key=lambda each: each[:2])
    if least > SAME:
        raise FitError("Tokens' scores with themselves are no multiple of query · key; expected a scale, or a softcap.")
    return Heads(attention, query, key, scores, scale, raw[shown], without_bias, best)


def read_scale(found: FoundFields, heads: Heads) -> None:
    """The fields that give the factor of scores: those with the simplest multiplier."""
    fields, factor = found.fields, heads.scale.factor
    options = []
    bases = (("head_dim", heads.attention.head_dim**-0.5), ("embed_dim", fields["embed_dim"] ** -0.5), ("none", 1.0))
    for index, (name, base) in enumerate(bases):
        estimate = factor / base

        def error(multiplier: float, base: float = base) -> float:
            return difference(Scale(multiplier * base, heads.scale.softcap)(heads.raw), heads.own)

        under_root = max(1, round(estimate**-2))  # Gemma's scalar: 1 / √n
        multiplier = settle(estimate, error, (1.0, under_root**-0.5))
        length = min(digits(multiplier), 1 + digits(under_root) if multiplier == under_root**-0.5 else DIGITS)
        options.append((multiplier != 1, length, index, name, multiplier))
    *_, name, multiplier = min(options)
    found.fields |= {
        "attention_scale": name,
        "attention_multiplier": multiplier,
        "attention_softcap": heads.scale.softcap,
    }
    same = [f"{each} with the multiplier {m:g}" for *_, each, m in options if each != name and digits(m) <= 3]
    if same:
        found.untold["attention_scale"] = f"{' and '.join(same)} computes the same"
        found.untold["attention_multiplier"] = "another goes with another attention_scale"


def _read_positions(found: FoundFields, subject: FittedModel, parts: Parts, stack: Stack, heads: Heads) -> None:
    """What positions do to scores."""
    left, length = heads.left, heads.query.shape[2]
    scale = np.abs(heads.scores.values[~np.broadcast_to(heads.scores.masked[:, None], left.shape)]).max(initial=1.0)
    if heads.table is None and np.abs(left).max() <= SAME * scale:
        return
    bias = bias_by_distance(left, heads.scores.masked)
    distances = np.arange(1 - length, length)
    if heads.table is not None and bias is not None:
        _read_relative(found, subject, stack, heads.table, bias, distances)
        return
    slopes = -alibi_slopes(heads.attention.heads)[:, None] * np.abs(distances)
    if bias is not None and same_where_known(bias, slopes):
        found.fields["positions"] = "alibi"
        return
    between = parts.heard.operations[heads.attention.begins : heads.attention.softmax.at]
    for turned in rotated_among(heads.query, between):
        made = rotary(heads.query, turned)
        if made is not None:
            found.fields |= {
                "positions": "rotary",
                "rope_layout": made.layout,
                "rotary_dim": None if made.features == heads.attention.head_dim else made.features,
                "rope_theta": made.theta,
                "rotary_scaling": made.scaling,
                "rotary_factor": made.factor,
                "rotary_original_length": made.original,
            }
            if made.features <= FEW:
                found.untold["rotary_scaling"] = "so few angles fit another rope_theta with scaling; try wider heads"
            return
    raise FitError("Scores depend on positions by none of rotary, relative and ALiBi; expected one of them.")


def _read_relative(
    found: FoundFields, subject: FittedModel, stack: Stack, table: str, bias: np.ndarray, distances: np.ndarray
) -> None:
    """The largest distance of relative positions: one of those by which `bias` has the rows of `table`."""
    rows = subject.values[table]
    buckets, both = len(rows), stack.name == "encoder"
    exact = buckets // (4 if both else 2)
    candidates = [*USUAL_DISTANCES, *range(exact + 1, 4 * buckets + len(distances))]
    fitting = [
        each
        for each in candidates
        if each > exact and same_where_known(bias, rows[relative_buckets(distances, buckets, each, both=both)].T)
    ]
    if not fitting:
        raise FitError("The bias of scores by distance is not that of T5's buckets; expected relative positions.")
    before = found.fields.get("relative_max_distance")
    chosen = before if before in fitting else fitting[0]
    is_beside = found.fields["positions"] in ("learned", "sinusoidal")
    found.fields |= {"relative_bias": True} if is_beside else {"positions": "relative"}
    found.fields |= {"relative_buckets": buckets, "relative_max_distance": chosen}
    found.parameters[f"{stack.name}.relative_bias.weight"] = rows
    found.relative_distances = [
        each for each in fitting if before is None or each in found.relative_distances or not found.relative_distances
    ]
    if len(set(found.relative_distances)) > 1:
        low, high = min(found.relative_distances), max(found.relative_distances)
        found.untold["relative_max_distance"] = (
            f"anything from {low} to {high} gives the same up to {len(distances) // 2}"
        )
