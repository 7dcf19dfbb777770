"""Determine the fields of attention: norms of queries and keys, the scale, and rotary, relative or ALiBi positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.parts import Parts, Stack
from transparity_conformance.identify.fitting.structure import Attention
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, RecordedCall
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, is_same
from transparity_conformance.identify.fitting.values.rotary import rotary, rotated_among
from transparity_conformance.identify.fitting.values.scores import Scale, Scores, raw_scores, scale_of, scores_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.norms.heads import query_key_norm
from transparity_numpy.positions.in_attention import alibi_slopes, relative_buckets

FEW = 4
"""With at most this many rotated features, a scaling and another rope_theta fit equally well."""


@dataclass(frozen=True, eq=False)
class Heads:
    """The first self-attention of a stack: the query and key after their norms, the scores, and the scale."""

    attention: Attention
    query: np.ndarray
    key: np.ndarray
    scores: Scores
    scale: Scale
    raw: np.ndarray
    own: np.ndarray
    """`raw` is the product query · key of each token with itself; `own` is its score without a bias."""
    table: str | None

    @property
    def left(self) -> np.ndarray:
        """Return the scores minus the scaled query · key: the effect of positions; 0 for masked scores."""
        left = self.scores.values - self.scale(raw_scores(self.query, self.key))
        return np.where(np.broadcast_to(self.scores.masked[:, None], left.shape), 0.0, left)


def read_attention(found: FoundFields, subject: FittedModel, parts: Parts) -> None:
    normed = _normed(found, subject, parts)
    for stack in [each for each in parts.stacks.values() if each.attentions()]:
        heads = _heads(subject, parts, stack, normed)
        _read_scale(found, heads)
        _read_positions(found, subject, parts, stack, heads)


def _normed(found: FoundFields, subject: FittedModel, parts: Parts) -> dict[str, np.ndarray]:
    result: dict[str, np.ndarray] = {}
    taken = {id(value) for value in found.parameters.values()}
    vectors = {name: value for name, value in subject.values.items() if value.ndim == 1 and id(value) not in taken}
    for stack in parts.stacks.values():
        for name, each in [(name, each) for name, each in stack.sublayers if isinstance(each, Attention)]:
            for role in ("query", "key"):
                x = each.split(getattr(each, role))
                vector, over, made = next(_norms_of(found, parts.heard, x, vectors), (None, "head", x))
                result[f"{name}.{role}"] = made
                found.fields["query_key_norm"] = vector is not None
                if vector is not None:
                    found.fields.setdefault("query_key_norm_over", over)
                    found.parameters[f"{name}.{role}_norm.weight"] = vectors.pop(vector)
    return result


def _norms_of(
    found: FoundFields, heard: RecordedCall, x: np.ndarray, vectors: Arrays
) -> Iterator[tuple[str, str, np.ndarray]]:
    sizes = {"head": x.shape[3]}
    if found.fields["projection"] == "full":
        sizes["projection"] = x.shape[1] * x.shape[3]
    before = found.fields.get("query_key_norm_over")
    for over, size in sizes.items() if before is None else [(before, sizes[before])]:
        config = found.config(query_key_norm=True, query_key_norm_over=over)
        for name, gain in vectors.items():
            if gain.size == size and heard.shows(made := query_key_norm(config, {"weight": gain}, x)):
                yield name, over, made


def _heads(subject: FittedModel, parts: Parts, stack: Stack, normed: Mapping[str, np.ndarray]) -> Heads:
    name, attention = next(
        (name, each) for name, each in stack.sublayers if isinstance(each, Attention) and "self" in name
    )
    scores = scores_of(attention.softmax, parts.heard.operations)
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
        raise FitError(
            "The score of a token with itself is neither a constant times query · key nor a softcap of this "
            "product; expected either form."
        )
    return Heads(attention, query, key, scores, scale, raw[shown], without_bias, best)


def _read_scale(found: FoundFields, heads: Heads) -> None:
    error = lambda factor: difference(Scale(factor, heads.scale.softcap)(heads.raw), heads.own)
    sizes = {"head_dim": heads.attention.head_dim, "embed_dim": found.fields["embed_dim"], "none": 1}
    found.put_factor("attention", heads.scale.factor, {name: size**-0.5 for name, size in sizes.items()}, error)
    found.fields["attention_softcap"] = heads.scale.softcap


def _read_positions(found: FoundFields, subject: FittedModel, parts: Parts, stack: Stack, heads: Heads) -> None:
    left, length = heads.left, heads.query.shape[2]
    shown = np.broadcast_to(~heads.scores.masked[:, None], left.shape)
    if heads.table is None and np.abs(left).max() <= SAME * np.abs(heads.scores.values[shown]).max(initial=1.0):
        return
    distances = np.arange(length) - np.arange(length)[:, None]

    def is_left(bias: np.ndarray) -> bool:
        return is_same(np.where(shown, bias, 0.0), left)

    if heads.table is not None and _read_relative(found, subject, stack, heads.table, is_left, distances):
        return
    if is_left(-alibi_slopes(heads.attention.heads)[:, None, None] * np.abs(distances)):
        found.fields["positions"] = "alibi"
        return
    between = parts.heard.operations[heads.attention.softmax.begins : heads.attention.softmax.at]
    made = next(filter(None, (rotary(heads.query, turned) for turned in rotated_among(heads.query, between))), None)
    if made is None:
        raise FitError("Scores depend on positions in an unknown way; expected rotary, relative or ALiBi positions.")
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
        found.untold["rotary_scaling"] = "so few angles fit several pairs of rope_theta and scaling; try wider heads"


def _read_relative(
    found: FoundFields,
    subject: FittedModel,
    stack: Stack,
    table: str,
    is_left: Callable[[np.ndarray], bool],
    distances: np.ndarray,
) -> bool:
    """Add the fields of relative positions and return True if the scores' bias consists of rows of `table`."""
    rows = subject.values[table]
    buckets, both = len(rows), stack.name == "encoder"
    exact = buckets // (4 if both else 2)
    candidates = dict.fromkeys([128, 64, 256, *range(exact + 1, 4 * buckets + 2 * len(distances))])
    of_each = {each: relative_buckets(distances, buckets, each, both=both) for each in candidates if each > exact}
    fitting = [each for each, bucket in of_each.items() if is_left(rows[bucket].transpose(2, 0, 1))]
    if not fitting:
        return False
    before = found.fields.get("relative_max_distance")
    is_beside = found.fields["positions"] in ("learned", "sinusoidal")
    found.fields |= {"relative_bias": True} if is_beside else {"positions": "relative"}
    found.fields["relative_buckets"] = buckets
    found.fields["relative_max_distance"] = before if before in fitting else fitting[0]
    found.parameters[f"{stack.name}.relative_bias.weight"] = rows
    found.relative_distances = [each for each in fitting if before is None or each in found.relative_distances]
    if len(found.relative_distances) > 1:
        low, high = min(found.relative_distances), max(found.relative_distances)
        same = f"all values from {low} to {high} lead to equal biases up to distance {len(distances) - 1}"
        found.untold["relative_max_distance"] = same
    return True
