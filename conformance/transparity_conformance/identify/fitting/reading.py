"""Determine the fields of attention: norms of queries and keys, the scale, and rotary, relative or ALiBi positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.identify.fitting.parts import Parts
from transparity_conformance.identify.fitting.structure import Attention
from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.found import FoundFields
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, is_same
from transparity_conformance.identify.fitting.values.rotary import rotary_fields, rotated_among
from transparity_conformance.identify.fitting.values.scores import Scale, raw_scores, scale_of, scores_of
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.norms.heads import query_key_norm
from transparity_numpy.positions.in_attention import alibi_slopes, distances, relative_buckets
from transparity_numpy.rotary.plain import rotate
from transparity_numpy.rotary.tables import rotary_tables

ROTARY = ("positions", "rope_theta", "rotary_scaling", "rotary_factor", "rotary_original_length")
"""The fields of rotary positions in which layers may differ."""

FEW = 4
"""With at most this many rotated features, a scaling and another rope_theta fit equally well."""


def read_attention(found: FoundFields, parts: Parts, values: Arrays) -> None:
    taken = {id(value) for value in found.parameters.values()}
    vectors = {name: value for name, value in values.items() if value.ndim == 1 and id(value) not in taken}
    normed: dict[str, np.ndarray] = {}
    for name, each in parts.every(Attention).items():
        for role in ("query", "key"):
            x = each.by_head(role)
            vector, over, normed[f"{name}.{role}"] = next(_norms_of(found, parts, x, vectors), ("", "head", x))
            if vector:
                found.fields.setdefault("query_key_norm_over", over)
                found.parameters[f"{name}.{role}_norm.weight"] = vectors.pop(vector)
    if normed:
        found.read_names("query_key_norm")
    for stack in parts.stacks:
        first = next((name for name in parts.every(Attention, "self_attention") if name.startswith(stack)), None)
        if first is not None:
            query, key = normed[f"{first}.query"], normed[f"{first}.key"]
            _read_scores(found, parts, values, parts.every(Attention)[first], query, key, stack)
    if found.fields.get("positions") == "rotary":
        _read_layers(found, parts, normed)


def _read_layers(found: FoundFields, parts: Parts, normed: Mapping[str, np.ndarray]) -> None:
    """Add the positions of each layer if some layers rotate by other angles, or not at all."""
    kinds = [{name: value for name, value in found.fields.items() if name in ROTARY}]
    for name, each in parts.every(Attention, "self_attention").items():
        query = normed[f"{name}.query"]
        turned = list(rotated_among(query, _between(parts, each)))
        own = next((kind for kind in kinds if any(is_same(_rotated(found, query, kind), y) for y in turned)), None)
        if own is None:
            fields = next(filter(None, (rotary_fields(query, y) for y in turned)), {"positions": "none"})
            own = {field: value for field, value in fields.items() if field in ROTARY}
            kinds.append(own)
        found.positions[name] = own
    if all(own is kinds[0] for own in found.positions.values()):
        found.positions.clear()


def _rotated(found: FoundFields, query: np.ndarray, kind: Mapping[str, Any]) -> np.ndarray:
    config = found.config(**kind)
    if config.positions != "rotary":
        return query
    tables = rotary_tables(config, np.arange(query.shape[2])[None], query.dtype)
    return rotate(query, tables, config.rope_layout)


def _between(parts: Parts, attention: Attention) -> Sequence[Operation]:
    return parts.heard.operations[attention.softmax.begins : attention.softmax.at]


def _norms_of(
    found: FoundFields, parts: Parts, x: np.ndarray, vectors: Arrays
) -> Iterator[tuple[str, str, np.ndarray]]:
    sizes = {"head": x.shape[3]}
    if found.fields["projection"] == "full":
        sizes["projection"] = x.shape[1] * x.shape[3]
    before = found.fields.get("query_key_norm_over")
    for over, size in sizes.items() if before is None else [(before, sizes[before])]:
        config = found.config(query_key_norm=True, query_key_norm_over=over)
        for name, gain in vectors.items():
            if gain.size == size and parts.heard.shows(made := query_key_norm(config, {"weight": gain}, x)):
                yield name, over, made


def _read_scores(
    found: FoundFields,
    parts: Parts,
    values: Arrays,
    attention: Attention,
    query: np.ndarray,
    key: np.ndarray,
    stack: str,
) -> None:
    """Add the scale and the positions."""
    scores, products = scores_of(attention.softmax, parts.heard.operations), raw_scores(query, key)
    visible = np.broadcast_to(~scores.masked[:, None], products.shape)
    scale, table = _read_scale(found, attention, values, scores.values, products, visible)
    left = np.where(visible, scores.values - scale(products), 0.0)
    if table is None and np.abs(left).max() <= SAME * np.abs(scores.values[visible]).max(initial=1.0):
        return
    apart = distances(np.arange(query.shape[2]), query.shape[2])

    def is_left(bias: np.ndarray) -> bool:
        return is_same(np.where(visible, bias, 0.0), left)

    if table is not None and _read_relative(found, stack, table, is_left, apart):
        return
    if is_left(-alibi_slopes(attention.heads)[:, None, None] * np.abs(apart)):
        found.fields["positions"] = "alibi"
        return
    turned = rotated_among(query, _between(parts, attention))
    fields = next(filter(None, (rotary_fields(query, each) for each in turned)), None)
    if fields is None:
        raise FitError("Scores depend on positions in an unknown way; expected rotary, relative or ALiBi positions.")
    if fields["rotary_dim"] <= FEW:
        found.untold["rotary_scaling"] = (
            "the heads have too few angles to determine both rope_theta and a scaling; try wider heads"
        )
    found.fields |= fields | ({"rotary_dim": None} if fields["rotary_dim"] == attention.head_dim else {})


def _read_scale(
    found: FoundFields,
    attention: Attention,
    values: Arrays,
    scores: np.ndarray,
    products: np.ndarray,
    visible: np.ndarray,
) -> tuple[Scale, np.ndarray | None]:
    """Add the scale and the softcap, and return them with the table of relative positions, if any. The score of a token
    with itself contains no rotation and no distance."""
    raw, own, shown = (np.diagonal(each, 0, -2, -1) for each in (products, scores, visible))
    tables = [each for each in values.values() if each.ndim == 2 and each.shape[1] == attention.heads]
    tried: list[tuple[float, int, Scale, np.ndarray | None, np.ndarray]] = []
    for table in (None, *tables):
        plain = (own - (0 if table is None else table[0][None, :, None]))[shown]
        scale = scale_of(raw[shown], plain)
        tried.append((difference(scale(raw[shown]), plain), len(tried), scale, table, plain))
    least, _, scale, best, without_bias = min(tried, key=lambda each: each[:2])
    if least > SAME:
        raise FitError(
            "The score of a token with itself is neither a constant times query · key nor a softcap of this "
            "product; expected either form."
        )
    error = lambda factor: difference(Scale(factor, scale.softcap)(raw[shown]), without_bias)
    sizes = {"head_dim": attention.head_dim, "embed_dim": found.fields["embed_dim"], "none": 1}
    found.put_factor("attention", scale.factor, {name: size**-0.5 for name, size in sizes.items()}, error)
    found.fields["attention_softcap"] = scale.softcap
    return scale, best


def _read_relative(
    found: FoundFields, stack: str, rows: np.ndarray, is_left: Callable[[np.ndarray], bool], apart: np.ndarray
) -> bool:
    """If the bias of the scores consists of `rows`, add the fields of relative positions. Return whether it does."""
    buckets, both = len(rows), stack == "encoder"
    exact = buckets // (4 if both else 2)
    candidates = dict.fromkeys([128, 64, 256, *range(exact + 1, 4 * buckets + 2 * len(apart))])
    of_each = {each: relative_buckets(apart, buckets, each, both=both) for each in candidates if each > exact}
    fitting = [each for each, bucket in of_each.items() if is_left(rows[bucket].transpose(2, 0, 1))]
    if not fitting:
        return False
    before = found.fields.get("relative_max_distance")
    is_beside = found.fields["positions"] in ("learned", "sinusoidal")
    found.fields |= {"relative_bias": True} if is_beside else {"positions": "relative"}
    found.fields["relative_buckets"] = buckets
    found.fields["relative_max_distance"] = before if before in fitting else fitting[0]
    found.parameters[f"{stack}.relative_bias.weight"] = rows
    found.relative_distances = [each for each in fitting if before is None or each in found.relative_distances]
    if len(found.relative_distances) > 1:
        low, high = min(found.relative_distances), max(found.relative_distances)
        same = f"all values from {low} to {high} lead to equal biases up to distance {len(apart) - 1}"
        found.untold["relative_max_distance"] = same
    return True
