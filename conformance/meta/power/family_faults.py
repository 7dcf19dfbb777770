"""Mistakes in the parts that the presets lack, as a port of a family makes them.

Nothing here knows how the checker imitates a mistake: what is said in both places was thought of twice.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meta.power import input_faults, recurrent_faults
from meta.power.family_port import (
    Acts,
    Arrays,
    Config,
    FamilyFault,
    Wrong,
    all_of,
    always,
    constantly,
    fields_to,
    having,
    replaced,
    unless,
    where,
)
from transparity.taps import scoped, tap_shapes
from transparity_conformance.oracle.cases import MODELS
from transparity_numpy import attention, embeddings, feed_forward, layers, normalization, positions
from transparity_numpy.arithmetic import functional
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.attention import split_heads
from transparity_numpy.positions import RotaryTables
from transparity_numpy.state.context import LayerContext

SCORES, WEIGHTS, HIDDEN, LOGITS = r".*\.scores", r".*\.weights", r".*\.hidden", r"logits"
ROTATED, EMBEDDING = r".*\.(query|key)_rotated", r"\w+\.embedding"
NORMS = r".*_norm|\w+\.output"
RMS_NORMS = rf"{NORMS}|.*_latent"


def acting(case: str) -> list[FamilyFault]:
    """Every mistake that acts in a case, at some tap that it has."""
    config = MODELS[case]
    taps = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
    acts = (fault for fault in FAULTS if fault.acts(config))
    return [fault for fault in acts if any(re.fullmatch(fault.place, tap) for tap in taps)]


def _other(name: str, *choices: Any) -> Callable[[Config], dict[str, Any]]:
    """The other of two choices of a field."""
    return lambda config: {name: choices[getattr(config, name) == choices[0]]}


_ROTARY = where(positions="rotary")
_SCALED = all_of(_ROTARY, unless(where(rotary_scaling="none")))
_IS_LONE = unless(where(architecture="encoder-decoder"))
_UNTIED = all_of(where(head="logits"), unless(where(tied_head=True)))


def _of_many_pairs(config: Config) -> bool:
    """Whether more than two pairs of features are rotated: of two, one is the first and one the last."""
    return _ROTARY(config) and config.rotated_dim > 4


def _partly_turned(config: Config) -> bool:
    return _ROTARY(config) and config.rotated_dim < config.head_dim and not config.key_value_rank


def _wholly_turned(config: Config) -> bool:
    return _ROTARY(config) and config.rotated_dim == config.head_dim == 8


def _all_turned(config: Config) -> dict[str, Any]:
    """All features of a head rotated; angles without a factor of their own (LongRoPE) take the last one."""
    more = (config.head_dim - config.rotated_dim) // 2
    names = ("rotary_short_factors", "rotary_long_factors") if config.rotary_scaling == "longrope" else ()
    return {"rotary_dim": None} | {name: getattr(config, name) + getattr(config, name)[-1:] * more for name in names}


def _grouped(config: Config) -> bool:
    return 1 < config.key_value_heads < config.num_heads


def _packs(config: Config) -> bool:
    is_plain = config.positions in ("rotary", "alibi") and not config.key_value_rank
    return config.architecture == "decoder" and is_plain and config.key_value_heads > 1


def _window(change: Callable[[int], int]) -> Callable[[Config], dict[str, Any]]:
    return lambda config: {"sliding_window": change(config.sliding_window or 0)}


def _swapped(one: str, other: str) -> Callable[[Config, Arrays], Arrays]:
    """The parameters of two parts exchanged, wherever both are, and alike in shape."""

    def exchanged(config: Config, parameters: Arrays) -> Arrays:
        names = {name: name.replace(f".{one}.", f".{other}.") for name in parameters if f".{one}." in name}
        shapes = {name: value.shape for name, value in parameters.items()}
        alike = {old: new for old, new in names.items() if shapes.get(new) == shapes[old]}
        both = alike | {new: old for old, new in alike.items()}
        return {name: parameters[both.get(name, name)] for name in parameters}

    return exchanged


def _rotated_by(change: Callable[[Config, str, RotaryTables], RotaryTables]) -> dict[str, Wrong]:
    """Queries or keys rotated by other tables."""

    def wrong(_: Config) -> Callable[..., Any]:
        right = attention.normalize_and_rotate

        def changed(config: Config, parameters: Any, name: str, x: Any, rotary: RotaryTables | None, tap: Any) -> Any:
            tables = None if rotary is None else change(config, name, rotary)
            return right(config, parameters, name, x, tables, tap)

        return changed

    return {"attention.normalize_and_rotate": wrong}


def _rotated_all(config: Config) -> Callable[..., Any]:
    """Queries and keys rotated in layers without positions, too."""
    right = attention.normalize_and_rotate

    def changed(own: Config, parameters: Any, name: str, x: Any, rotary: RotaryTables | None, tap: Any) -> Any:
        x = right(own, parameters, name, x, rotary, tap)
        if own.positions != "none":
            return x
        tables = positions.rotary_tables(config, np.arange(x.shape[2])[None], x.dtype)
        assert tables is not None
        return positions.rotate(x, tables, config.rope_layout)

    return changed


_ROTATED_ALL: dict[str, Wrong] = {"attention.normalize_and_rotate": _rotated_all}


def _unturned(*roles: str) -> dict[str, Wrong]:
    def change(config: Config, name: str, rotary: RotaryTables) -> RotaryTables:
        return (np.ones_like(rotary[0]), np.zeros_like(rotary[1])) if name in roles else rotary

    return _rotated_by(change)


def _turned_back(*roles: str) -> dict[str, Wrong]:
    def change(config: Config, name: str, rotary: RotaryTables) -> RotaryTables:
        return (rotary[0], -rotary[1]) if name in roles else rotary

    return _rotated_by(change)


def _one_later(role: str, by: int) -> dict[str, Wrong]:
    def change(config: Config, name: str, rotary: RotaryTables) -> RotaryTables:
        cosine, sine = rotary
        beyond = cosine.shape[-2] > config.rotary_original_length
        step = by * positions.rotary_frequencies(config, beyond=beyond)
        more, most = np.cos(step), np.sin(step)
        moved = (cosine * more - sine * most, sine * more + cosine * most)
        return (moved[0].astype(cosine.dtype), moved[1].astype(sine.dtype)) if name == role else rotary

    return _rotated_by(change)


def _frequencies_of_all(_: Config) -> Callable[..., Any]:
    right = positions.rotary_frequencies

    def frequencies(config: Config, **given: Any) -> np.ndarray:
        plain = right(dataclasses.replace(config, rotary_scaling="none"))
        wrong = [config.rope_theta ** (-2 * pair / config.head_dim) for pair in range(config.rotated_dim // 2)]
        return right(config, **given) / plain * np.array(wrong)

    return frequencies


def _smoothed(config: Config, turned: bool, stepped: bool) -> np.ndarray:
    """Llama 3.1's frequencies, pair by pair, with a mistake in what lies between the slow and the fast ones."""
    found = []
    for pair in range(config.rotated_dim // 2):
        plain = config.rope_theta ** (-2 * pair / config.rotated_dim)
        wavelength = 2 * np.pi / plain
        if wavelength <= config.rotary_original_length / config.rotary_high_frequency:
            found.append(plain)
        elif stepped or wavelength >= config.rotary_original_length / config.rotary_low_frequency:
            found.append(plain / config.rotary_factor)
        else:
            smooth = config.rotary_original_length / wavelength - config.rotary_low_frequency
            smooth /= config.rotary_high_frequency - config.rotary_low_frequency
            smooth = 1 - smooth if turned else smooth
            found.append((1 - smooth) * plain / config.rotary_factor + smooth * plain)
    return np.array(found)


def _mixed_the_other_way(_: Config) -> Callable[..., Any]:
    return lambda config, **_: _smoothed(config, turned=True, stepped=False)


def _without_a_smooth_part(_: Config) -> Callable[..., Any]:
    return lambda config, **_: _smoothed(config, turned=False, stepped=True)


def _in_half(kind: Any, part: str) -> dict[str, Wrong]:
    """Queries and keys turned as one who computes that `part` of the angles in `kind` turns them."""

    def rotary_tables(config: Config, at: Any, dtype: Any) -> RotaryTables | None:
        if config.positions != "rotary":
            return None
        steps = positions.rotary_frequencies(config, beyond=at.max() >= config.rotary_original_length)
        if part != "tables":
            steps = steps.astype(kind)
        if part == "frequencies":
            steps = steps.astype(np.float64)
        angles = (at.astype(steps.dtype)[..., None] * steps)[:, None]
        factor = config.rotary_attention_factor
        tables = [factor * function(angles.astype(np.float64)) for function in (np.cos, np.sin)]
        if part in ("tables", "everything"):
            tables = [table.astype(kind) for table in tables]
        return tables[0].astype(dtype), tables[1].astype(dtype)

    return {"transformer.rotary_tables": lambda _: rotary_tables}


def _norm_last(_: Config) -> Callable[..., Any]:
    right = attention.normalize_and_rotate

    def changed(config: Config, parameters: Any, name: str, x: Any, rotary: RotaryTables | None, tap: Any) -> Any:
        if rotary is None:
            return right(config, parameters, name, x, rotary, tap)
        turned = positions.rotate(x, rotary, config.rope_layout)
        return tap(f"{name}_rotated", attention.query_key_norm(config, parameters[f"{name}_norm"], turned))

    return changed


def _all_heads(_: Config) -> Callable[..., Any]:
    def head_norm(config: Config, parameters: Any, x: Any) -> Any:
        size = np.square(x).mean(axis=1, keepdims=True).mean(axis=3, keepdims=True)
        return x / np.sqrt(size + x.dtype.type(config.norm_eps)) * normalization.gain(config, parameters["weight"])

    return head_norm


def _in_turn(_: Config) -> Callable[..., Any]:
    """A layer with one norm, whose feed-forward reads what is behind the attention."""

    def layer(config: Config, parameters: Any, x: Any, context: Any, tap: Any, cache: Any = None) -> Any:
        y = layers.sublayer_input(config, parameters, "self_attention", x, context, tap)
        y = attention.self_attention(config, parameters["self_attention"], y, context, scoped(tap, "self_attention"))
        x = x + y
        z = normalization.norm(config, parameters["self_attention_norm"], x)
        return tap(
            "output", x + feed_forward.feed_forward(config, parameters["feed_forward"], z, scoped(tap, "feed_forward"))
        )

    return layer


def _normed_everywhere(_: Config) -> Callable[..., Any]:
    """What each sublayer is given, by its norm, where it should have none, too."""
    right = layers.sublayer_input

    def sublayer_input(config: Config, parameters: Any, name: str, x: Any, *rest: Any) -> Any:
        if name == "self_attention" and not config.attention_norm:
            return normalization.norm(config, parameters["self_attention_norm"], x)
        return right(config, parameters, name, x, *rest)

    return sublayer_input


def _with_all_norms(gain: Callable[[np.ndarray], np.ndarray], config: Config, parameters: Arrays) -> Arrays:
    """The parameters with a norm in front of the first attention, made of that of the embeddings."""
    norm = gain(parameters["encoder.embedding_norm.weight"])
    return {"encoder.layers.0.self_attention_norm.weight": norm, **parameters}


def _each_head(_: Config) -> Callable[..., Any]:
    def query_key_norm(config: Config, parameters: Any, x: Any) -> Any:
        size = np.square(x).mean(axis=3, keepdims=True)
        weight = normalization.gain(config, parameters["weight"]).reshape(x.shape[1], 1, -1)
        return x / np.sqrt(size + x.dtype.type(config.norm_eps)) * weight

    return query_key_norm


def _tiled(_: Config) -> Callable[..., Any]:
    return lambda x, num_heads: np.concatenate([x] * (num_heads // x.shape[1]), axis=1)


def _backwards(_: Config) -> Callable[..., Any]:
    return lambda x, num_heads: np.repeat(x, num_heads // x.shape[1], axis=1)[:, ::-1]


def _rms(change: Callable[[Any, float], Any]) -> dict[str, Wrong]:
    """Another RMS norm, in front of its gain."""
    return {"normalization.rms_norm": lambda _: lambda x, weight, eps: change(x, eps).astype(x.dtype) * weight}


def _fed(change: Callable[[Callable[[Any], Any], Any, Any], Any]) -> dict[str, Wrong]:
    """Replace the combination of activation, gate and up."""

    def wrong(config: Config) -> Callable[..., Any]:
        function, most = feed_forward.ACTIVATIONS[config.activation], config.gate_limit or math.inf

        def gated(config: Config, gate: Any, up: Any) -> Any:
            dtype = gate.dtype
            gate, up = np.where(gate > most, most, gate), np.clip(up, -most, most) + config.up_offset
            return change(function, gate.astype(dtype), up.astype(dtype))

        return gated

    return {"feed_forward.gated": wrong}


def _bounded(change: Callable[[Callable[[Any], Any], float, Any, Any], Any]) -> dict[str, Wrong]:
    """Replace the bounds of gate and up, and the number that is added to up."""

    def wrong(config: Config) -> Callable[..., Any]:
        function, limit = feed_forward.ACTIVATIONS[config.activation], config.gate_limit or math.inf
        return lambda config, gate, up: change(function, limit, gate, up).astype(gate.dtype)

    return {"feed_forward.gated": wrong}


def _activations(change: Callable[[Any], Any]) -> dict[str, Wrong]:
    return {"feed_forward.ACTIVATIONS": lambda config: {config.activation: change}}


def _differ(*fields: str) -> Acts:
    """Configurations in which one of these differs between layers."""
    return lambda config: any(len({getattr(own, name) for own in config.layer_kinds.values()}) > 1 for name in fields)


def _as_next_kind(*fields: str) -> Callable[[Config], dict[str, Any]]:
    """Layers of each kind that have these fields of the next kind."""

    def changed(config: Config) -> dict[str, Any]:
        kinds = list(config.layer_kinds)
        return _as_kind(config, fields, dict(zip(kinds, kinds[1:] + kinds[:1], strict=True)))

    return changed


def _as_first_kind(*fields: str) -> Callable[[Config], dict[str, Any]]:
    """Layers that all have these fields of the first kind."""
    return lambda config: _as_kind(config, fields, dict.fromkeys(config.layer_kinds, next(iter(config.layer_kinds))))


def _as_kind(config: Config, fields: Sequence[str], taken: Mapping[str, str]) -> dict[str, Any]:
    overrides = {kind: dict(config.layer_overrides.get(kind, {})) for kind in taken}
    for kind, other in taken.items():
        overrides[kind] |= {name: getattr(config.layer_kinds[other], name) for name in fields}
    return {"layer_overrides": overrides}


def _buckets(wrong: Callable[..., Any]) -> dict[str, Wrong]:
    return {"positions.relative_buckets": lambda _: functools.partial(wrong, positions.relative_buckets)}


def _ceiled(right: Any, distances: Any, buckets: int, most: int, *, both: bool) -> Any:
    """Bucket by bucket, as a loop would find it, the shared ones rounded up."""

    def bucket(distance: int) -> int:
        count, first = (buckets // 2, buckets // 2 * (distance > 0)) if both else (buckets, 0)
        far = abs(distance) if both else max(0, -distance)
        if far < count // 2:
            return first + far
        part = math.log(far / (count // 2)) / math.log(most / (count // 2)) * (count - count // 2)
        return first + min(count - 1, count // 2 + math.ceil(part))

    return np.vectorize(bucket)(distances)


def _exact(right: Any, distances: Any, buckets: int, most: int, *, both: bool) -> Any:
    half = buckets // 2 if both else buckets
    far = np.abs(distances) if both else np.where(distances < 0, -distances, 0)
    return np.where(far < half, far, half - 1) + (half * (distances > 0) if both else 0)


def _scaled_bias(config: Config, parameters: Arrays) -> Arrays:
    """The bias of distances divided like the scores."""
    scale = np.float32(config.score_scale)
    return {
        name: value * scale if name.endswith("relative_bias.weight") else value for name, value in parameters.items()
    }


def _first_layer_alone(stack: str) -> dict[str, Wrong]:
    """The bias is added to scores in the first layer of a stack only."""

    def wrong(config: Config) -> Callable[..., Any]:
        right, calls = layers.layer, iter(range(10_000))

        def layer(config: Config, parameters: Any, x: Any, context: LayerContext, *others: Any) -> Any:
            is_other = stack != ("decoder" if context.memory_mask is not None else "encoder")
            kept = context if is_other or next(calls) == 0 else context._replace(bias=None)
            return right(config, parameters, x, kept, *others)

        return layer

    return {"transformer.layer": wrong}


def _slopes(wrong: Callable[[Config, Any], Any]) -> dict[str, Wrong]:
    def changed(config: Config) -> Callable[..., Any]:
        right = positions.alibi_slopes(config.num_heads)
        return lambda heads: np.asarray(wrong(config, right))

    return {"positions.alibi_slopes": changed}


def _scores(wrong: Callable[..., Any]) -> dict[str, Wrong]:
    return {"attention.attention_scores": lambda _: wrong}


def _plus(scores: Any, bias: Any) -> Any:
    return scores if bias is None else scores + bias


def _weights(wrong: Callable[..., Any]) -> dict[str, Wrong]:
    def changed(config: Config) -> Callable[..., Any]:
        return functools.partial(wrong, config, attention.attention_weights)

    return {"attention.attention_weights": changed}


def _ids(change: Callable[[Any, Any], Any]) -> dict[str, Wrong]:
    def changed(_: Config) -> Callable[..., Any]:
        right = embeddings.position_ids
        return lambda config, visible, at: change(right(config, visible, at), visible)

    return {"embeddings.position_ids": changed}


def _packed(read_by_head: bool) -> Callable[[Config, Arrays], Arrays]:
    """One matrix of queries, keys and values, laid one behind the other and read group by group, or the reverse."""

    def changed(config: Config, parameters: Arrays) -> Arrays:
        found = dict(parameters)
        for name in parameters:
            if ".self_attention.query." in name:
                names = [name.replace(".query.", f".{role}.") for role in ("query", "key", "value")]
                rows = np.concatenate([parameters[each] for each in names])
                # Which row of those one behind the other stands in each place, if they stand group by group.
                ends = np.cumsum([len(parameters[each]) for each in names])[:-1]
                roles = [np.split(role, config.key_value_heads) for role in np.split(np.arange(len(rows)), ends)]
                order = np.concatenate([role[group] for group in range(config.key_value_heads) for role in roles])
                read = np.argsort(order) if read_by_head else order
                found |= zip(names, np.split(rows[read], ends), strict=True)
        return found

    return changed


def _rows_for(layout: str) -> Callable[[Config, Arrays], Arrays]:
    """The rows of queries and keys where a converter puts them for a model that rotates in this `layout`."""

    def changed(config: Config, parameters: Arrays) -> Arrays:
        half = config.rotated_dim // 2
        for_neighbours = [row for pair in range(half) for row in (pair, pair + half)]
        order = for_neighbours if layout == "neighbours" else np.argsort(for_neighbours).tolist()
        order = [*order, *range(config.rotated_dim, config.head_dim)]
        found = dict(parameters)
        for name, value in parameters.items():
            if ".query." in name or ".key." in name:
                heads = np.split(value, len(value) // config.head_dim)
                found[name] = np.concatenate([head[order] for head in heads])
        return found

    return changed


def _of_the_layers_input(_: Config) -> Callable[..., Any]:
    """A feed-forward layer beside the attention, as GPT-J and GPT-NeoX have it."""
    right, given = layers.sublayer_input, dict[str, Any]()

    def wrong(config: Config, parameters: Any, name: str, x: Any, *rest: Any) -> Any:
        given["x"] = x if name == "self_attention" else given["x"]
        return right(config, parameters, name, given["x"], *rest)

    return wrong


def _table(name: str) -> bool:
    return name.endswith("token_embedding.weight")


def _zero_padding(config: Config, parameters: Arrays) -> Arrays:
    found = {name: value.copy() for name, value in parameters.items()}
    for name in found:
        if _table(name):
            found[name][config.pad_id] = 0
    return found


def _no_types(config: Config, inputs: Arrays) -> Arrays:
    return {name: value for name, value in inputs.items() if name != "token_types"}


def _norm_first() -> dict[str, Wrong]:
    """Token embeddings are normalised, then positions are added."""
    right, normalized = embeddings.embed, normalization.norm
    added: dict[str, Any] = {}

    def embedded(config: Config, parameters: Any, tokens: Any, *given: Any, **named: Any) -> Any:
        table = parameters["position_embedding"]["weight"]
        without = parameters | {"position_embedding": {"weight": np.zeros_like(table)}}
        x = right(config, parameters, tokens, *given, **named)
        added["positions"] = x - right(config, without, tokens, *given, **named)
        return x

    def normalize(config: Config, parameters: Any, name: str, x: Any, tap: Any, **named: Any) -> Any:
        return tap(name, normalized(config, parameters[name], x - added["positions"]) + added["positions"])

    return {"transformer.embed": lambda _: embedded, "transformer.normalize": lambda _: normalize}


def _zero_where_looked_up() -> dict[str, Wrong]:
    right = embeddings.embed

    def embedded(config: Config, parameters: Any, *given: Any, **named: Any) -> Any:
        table = parameters["token_embedding"]["weight"].copy()
        table[config.pad_id] = 0
        return right(config, parameters | {"token_embedding": {"weight": table}}, *given, **named)

    return {"transformer.embed": lambda _: embedded}


def _given(name: str, change: Callable[[Config, Arrays], Any]) -> Callable[[Config, Arrays], Arrays]:
    return lambda config, inputs: inputs | {name: change(config, inputs)}


def _exchanged_inputs(config: Config, inputs: Arrays) -> Arrays:
    return inputs | {"attention_mask": inputs["token_types"], "token_types": inputs["attention_mask"]}


def _reshown(config: Config, inputs: Arrays) -> np.ndarray:
    return (inputs[config.input_names[0]] != config.pad_id).astype(np.int64)


def _mean_of_visible(c: Config, x: Any, seen: Any, tokens: Any) -> Any:
    return (x * seen[..., None]).sum(axis=1) / np.maximum(seen.sum(axis=1, keepdims=True), 1e-9).astype(x.dtype)


def _last_visible(c: Config, x: Any, seen: Any, tokens: Any) -> Any:
    return x[np.arange(len(x)), (np.arange(x.shape[1]) * seen).argmax(axis=1)]


def _poolers(activation: Callable[[Any], Any] | None) -> Wrong:
    """One activation, or none, behind the pooler's linear map."""
    return lambda _: dict.fromkeys(("tanh", "relu", "gelu"), activation or (lambda x: x))


def _root(x: Any) -> Any:
    return np.sqrt(np.mean(x * x, axis=-1, keepdims=True))


def _head_of_table(config: Config, parameters: Arrays) -> Arrays:
    return parameters | {"head.weight": next(value for name, value in parameters.items() if _table(name))}


def _faults() -> Iterator[FamilyFault]:
    yield from _rotary_faults()
    yield from _attention_faults()
    yield from _sink_faults()
    yield from recurrent_faults.faults()
    yield from _attention_gate_faults()
    yield from _latent_faults()
    yield from _window_faults()
    yield from _chunk_faults()
    yield from _temperature_faults()
    yield from _distance_faults()
    yield from _norm_faults()
    yield from _feed_forward_faults()
    yield from _expert_faults()
    yield from _embedding_faults()
    yield from _further_faults()
    yield from _head_faults()
    yield from _usual_faults()
    yield from input_faults.faults()


def _ramped(*, backwards: bool = False, whole: bool = False, begins: float | None = None) -> dict[str, Wrong]:
    """YaRN's frequencies pair by pair, with a mistake in the ramp."""

    def frequencies(config: Config, **_: Any) -> np.ndarray:
        span = np.log(config.rope_theta) / (config.rotated_dim / 2)
        wave = config.rotary_original_length / (2 * np.pi)
        turns = (config.rotary_high_frequency, config.rotary_low_frequency)
        low, high = sorted(max(0.0, np.log(wave / each) / span) for each in turns)
        low, high = (np.floor(low), np.ceil(high)) if whole else (low, high)
        low = low if begins is None else begins
        found = []
        for pair in range(config.rotated_dim // 2):
            along = min(max((pair - low) / (high - low), 0.0), 1.0)
            if backwards:
                along = min(max((pair - high) / (low - high), 0.0), 1.0)
            plain = config.rope_theta ** (-2 * pair / config.rotated_dim)
            found.append(plain * (1 - along) + plain / config.rotary_factor * along)
        return np.array(found)

    return {"positions.rotary_frequencies": lambda _: frequencies}


def _long_faults() -> Iterator[FamilyFault]:
    """Mistakes in the scalings for long sequences: YaRN's ramp, LongRoPE's two lists, and the attention factor."""
    yarn, longrope = where(rotary_scaling="yarn"), where(rotary_scaling="longrope")
    ramp = all_of(yarn, _of_many_pairs)
    for name, acts, wrong in (
        ("ramp backwards", yarn, _ramped(backwards=True)),
        ("whole pairs", all_of(yarn, where(rotary_truncate=False)), _ramped(whole=True)),
        ("ramp from the first pair", ramp, _ramped(begins=0.0)),
    ):
        yield FamilyFault(("rotary-scaling",), name, ROTATED, acts, exchanged=wrong)
    for name, fields in (
        ("32 and 1 turns", fields_to(rotary_high_frequency=32.0, rotary_low_frequency=1.0)),
        ("original length is max_length", lambda config: {"rotary_original_length": config.max_length}),
    ):
        yield FamilyFault(("rotary-scaling",), name, ROTATED, ramp, fields)
    factored = all_of(_ROTARY, unless(where(rotary_attention_factor=1.0)))
    for name, change in (
        ("missing", lambda factor: 1.0),
        ("twice", lambda factor: factor * factor),
        ("divided", lambda factor: 1 / factor),
        ("1.09", lambda factor: 1.09),
    ):
        fields = _factor_of(change)
        yield FamilyFault(("rotary-attention-factor",), name, ROTATED, factored, fields)
    for name, fields in (
        ("long alone", lambda config: {"rotary_short_factors": config.rotary_long_factors}),
        ("short alone", lambda config: {"rotary_long_factors": config.rotary_short_factors}),
        ("long from the original length on", lambda config: {"rotary_original_length": 5}),
    ):
        yield FamilyFault(("rotary-length",), name, ROTATED, longrope, fields)


def _factor_of(change: Callable[[float], float]) -> Callable[[Config], dict[str, Any]]:
    return lambda config: {"rotary_attention_factor": change(config.rotary_attention_factor)}


def _rotary_faults() -> Iterator[FamilyFault]:
    pairs = _other("rope_layout", "halves", "interleaved")
    yield FamilyFault(("rotary-layout",), "other", ROTATED, _ROTARY, pairs)
    for base in (10_000.0, 1e6, 500_000.0, 7321.0, 77.0):
        acts = all_of(_ROTARY, unless(where(rope_theta=base)))
        yield FamilyFault(("rotary-base",), f"{base:g}", ROTATED, acts, fields_to(rope_theta=base))
    for name, fields in (
        ("none", fields_to(rotary_scaling="none")),
        ("the other", _other("rotary_scaling", "linear", "llama3")),
        ("factor 3.3", fields_to(rotary_factor=3.3)),
        ("inverted", lambda config: {"rotary_factor": 1 / config.rotary_factor}),
    ):
        acts = _SCALED if name == "none" else all_of(_SCALED, unless(where(rotary_scaling="longrope")))
        yield FamilyFault(("rotary-scaling",), name, ROTATED, acts, fields)
    yield from _long_faults()
    for name, frequencies in (("other way round", _mixed_the_other_way), ("a step", _without_a_smooth_part)):
        wrong = {"positions.rotary_frequencies": frequencies}
        yield FamilyFault(("rotary-scaling",), name, ROTATED, where(rotary_scaling="llama3"), exchanged=wrong)
    yield FamilyFault(("rotary-partial",), "all", ROTATED, _partly_turned, _all_turned)
    wrong = {"positions.rotary_frequencies": _frequencies_of_all}
    yield FamilyFault(("rotary-partial",), "angles of all", ROTATED, _partly_turned, exchanged=wrong)
    yield FamilyFault(("rotary-partial",), "half", ROTATED, _wholly_turned, fields_to(rotary_dim=4))
    for roles in (("query",), ("key",), ("query", "key")):
        name = " and ".join(roles)
        yield FamilyFault(("rotary-missing",), name, ROTATED, _ROTARY, exchanged=_unturned(*roles))
        yield FamilyFault(("rotary-direction",), name, ROTATED, _ROTARY, exchanged=_turned_back(*roles))
    for role in ("query", "key"):
        for by in (1, -1):
            yield FamilyFault(("rotary-position",), f"{role} {by:+d}", ROTATED, _ROTARY, exchanged=_one_later(role, by))
    yield from _rotary_faults_by_layer()
    for kind in (ml_dtypes.bfloat16, np.float16):
        for part in ("frequencies", "angles", "tables", "everything"):
            variant = f"{part} in {np.dtype(kind)}"
            # Of two pairs, the angles of one are whole numbers, and those of the other are as good as exact in float16.
            acts = _of_many_pairs if kind is np.float16 and part in ("frequencies", "angles") else _ROTARY
            yield FamilyFault(("rotary-precision",), variant, ROTATED, acts, exchanged=_in_half(kind, part))


def _rotary_faults_by_layer() -> Iterator[FamilyFault]:
    bases = all_of(_ROTARY, _differ("rope_theta"))
    yield FamilyFault(("rotary-layers",), "base exchanged", ROTATED, bases, _as_next_kind("rope_theta"))
    scaling = ("rotary_scaling", "rotary_factor")
    scaled = all_of(_ROTARY, _differ(*scaling))
    yield FamilyFault(("rotary-layers",), "scaling exchanged", ROTATED, scaled, _as_next_kind(*scaling))
    yield FamilyFault(("rotary-layers",), "exchanged", ROTATED, scaled, _as_next_kind("rope_theta", *scaling))
    yield FamilyFault(("rotary-layers", "rotary-scaling"), "unscaled", ROTATED, scaled, _as_first_kind(*scaling))
    yield FamilyFault(("rotary-layers",), "rotated", SCORES, _differ("positions"), exchanged=_ROTATED_ALL)


def _attention_faults() -> Iterator[FamilyFault]:
    normed, heads = having("query_key_norm"), r".*\.(query|key)_(norm|rotated)"
    yield FamilyFault(("norm-missing",), "query and key", heads, normed, fields_to(query_key_norm=False))
    wrong = {"attention.normalize_and_rotate": _norm_last}
    yield FamilyFault(("query-key-norm",), "behind the rotation", heads, normed, exchanged=wrong)
    over_each, over_all = where(query_key_norm_over="head"), where(query_key_norm_over="projection")
    wrong = {"attention.query_key_norm": _all_heads}
    yield FamilyFault(("query-key-norm",), "heads together", heads, all_of(normed, over_each), exchanged=wrong)
    wrong = {"attention.query_key_norm": _each_head}
    yield FamilyFault(("query-key-norm",), "each head", heads, all_of(normed, over_all), exchanged=wrong)
    yield FamilyFault(
        ("norm-swapped",),
        "query and key",
        heads,
        all_of(normed, over_each),
        parameters=_swapped("query_norm", "key_norm"),
    )
    tiled = {"attention.repeat_heads": _tiled}
    yield FamilyFault(("head-grouping",), "tiled", r".*\.(scores|context)", _grouped, exchanged=tiled)
    capped = having("attention_softcap")
    for cap in (None, 50.0, 7.3):
        yield FamilyFault(("attention-cap",), f"{cap}", SCORES, capped, fields_to(attention_softcap=cap))
    yield FamilyFault(("attention-cap",), "not wanted", SCORES, unless(capped), fields_to(attention_softcap=20.0))
    early = _scores(
        lambda query, key, scale, cap, bias: _plus(np.tanh(query @ key.swapaxes(-2, -1) / cap) * cap * scale, bias)
    )
    yield FamilyFault(("attention-cap",), "before the scale", SCORES, capped, exchanged=early)
    cut = _scores(
        lambda query, key, scale, cap, bias: _plus(np.clip(query @ key.swapaxes(-2, -1) * scale, -cap, cap), bias)
    )
    yield FamilyFault(("attention-cap",), "clipped", SCORES, capped, exchanged=cut)
    behind = _weights(lambda config, right, scores, mask, hidden, _: right(scores, mask, -config.attention_softcap))
    yield FamilyFault(("attention-cap", "mask-value"), "behind the mask", WEIGHTS, capped, exchanged=behind)


def _window_faults() -> Iterator[FamilyFault]:
    windowed, alternates = having("sliding_window"), _differ("sliding_window")
    yield FamilyFault(("window-size",), "+1", WEIGHTS, windowed, _window(lambda window: window + 1))
    yield FamilyFault(("window-size",), "-1", WEIGHTS, windowed, _window(lambda window: window - 1))
    yield FamilyFault(("window-missing",), "missing", WEIGHTS, windowed, fields_to(sliding_window=None))
    lone = all_of(windowed, where(architecture="encoder"))
    yield FamilyFault(("window-size",), "half", WEIGHTS, lone, _window(lambda window: window // 2 + 1))
    yield FamilyFault(("window-layers",), "all", WEIGHTS, alternates, _as_first_kind("sliding_window"))
    yield FamilyFault(
        ("window-layers", "window-missing"), "exchanged", WEIGHTS, alternates, _as_next_kind("sliding_window")
    )


def _chunk_faults() -> Iterator[FamilyFault]:
    windowed = having("sliding_window")
    for kind, other in (("sliding", "chunks"), ("chunks", "sliding")):
        acts = all_of(windowed, where(window_kind=kind))
        yield FamilyFault(("window-kind",), other, WEIGHTS, acts, _to_kind_of_window(other))
    chunks = all_of(windowed, where(window_kind="chunks"))
    for name, begin in (("early", 1), ("late", -1)):
        moved = _pieces(begin)
        yield FamilyFault(("window-begin",), name, WEIGHTS, chunks, exchanged={"transformer.window_mask": moved})


def _to_kind_of_window(kind: str) -> Callable[[Config], dict[str, Any]]:
    def fields(config: Config) -> dict[str, Any]:
        kept = {name: {**own, "window_kind": kind} for name, own in config.layer_overrides.items()}
        return {"window_kind": kind, "layer_overrides": kept}

    return fields


def _pieces(begin: int) -> Wrong:
    def together(at: Any, keys: int, size: int, kind: str) -> Any:
        assert kind == "chunks"
        return (np.floor((np.arange(keys) + begin) / size) == np.floor((at[..., None] + begin) / size))[:, None]

    return functools.partial(constantly, together)


def _temperature_faults() -> Iterator[FamilyFault]:
    """Llama 4: log(floor((position + 1) / 8192) + 1) · 0.1 + 1, on layers without positions."""
    tempered, differs = having("query_temperature"), _differ("query_temperature")
    missing = fields_to(query_temperature=0.0)
    yield FamilyFault(("query-temperature", "query-temperature-layers"), "missing", SCORES, tempered, missing)
    other = lambda config: {"query_temperature_first": 1 - config.query_temperature_first}  # noqa: E731
    yield FamilyFault(("query-temperature",), "the other first", SCORES, tempered, other)
    for name, change in (
        ("continuous", lambda beta, at, size: 1 + beta * np.log(at / size + 1)),
        ("one more", lambda beta, at, size: 1 + beta * np.log(at // size + 2)),
        ("squared", lambda beta, at, size: (1 + beta * np.log(at // size + 1)) ** 2),
    ):
        exchanged = {"transformer.query_temperature": _temperature(change)}
        yield FamilyFault(("query-temperature",), name, SCORES, tempered, exchanged=exchanged)
    yield FamilyFault(("query-temperature-layers",), "exchanged", SCORES, differs, _as_next_kind("query_temperature"))
    yield FamilyFault(("query-temperature-layers",), "all", SCORES, differs, _as_warmest)


def _as_warmest(config: Config) -> dict[str, Any]:
    """Every layer with the temperature that some have."""
    most = max(own.query_temperature for own in config.layer_kinds.values())
    kept = {name: {**own, "query_temperature": most} for name, own in config.layer_overrides.items()}
    return {"query_temperature": most, "layer_overrides": kept}


def _temperature(change: Callable[[float, Any, int], Any]) -> Wrong:
    def wrong(own: Config, at: Any, dtype: Any) -> Any:
        if own.query_temperature == 0:
            return None
        at = (at + own.query_temperature_first)[:, None, :, None]
        return change(own.query_temperature, at, own.query_temperature_length).astype(dtype)

    return functools.partial(constantly, wrong)


def _distance_faults() -> Iterator[FamilyFault]:
    lone, alibi = where(positions="relative"), where(positions="alibi")
    relative, beside = having("has_relative_bias"), having("relative_bias")
    for name, wrong in (
        ("the other", lambda right, at, count, most, *, both: right(at, count, most, both=not both)),
        ("all exact", _exact),
        ("rounded up", _ceiled),
    ):
        yield FamilyFault(("relative-buckets",), name, SCORES, relative, exchanged=_buckets(wrong))
    turned = _buckets(lambda right, at, count, most, *, both: right(-at, count, most, both=both))
    yield FamilyFault(("relative-direction",), "turned", SCORES, relative, exchanged=turned)
    yield FamilyFault(("relative-buckets",), "up to 128", SCORES, relative, fields_to(relative_max_distance=128))
    yield FamilyFault(("relative-missing",), "missing", SCORES, lone, fields_to(positions="none"))
    yield FamilyFault(("relative-missing",), "missing beside others", SCORES, beside, fields_to(relative_bias=False))
    for stack in ("encoder", "decoder"):
        alone, scores = _first_layer_alone(stack), rf"{stack}{SCORES}"
        yield FamilyFault(("relative-missing",), f"first {stack} layer alone", scores, relative, exchanged=alone)
    negative = replaced(lambda name, value: -value if name.endswith("relative_bias.weight") else value)
    yield FamilyFault(("relative-sign",), "taken off", SCORES, relative, parameters=negative)
    yield FamilyFault(("relative-scaled",), "scaled", SCORES, beside, parameters=_scaled_bias)
    for name, slopes in (
        ("naive", lambda c, right: [2 ** (-8 * (head + 1) / c.num_heads) for head in range(c.num_heads)]),
        ("from 0", lambda c, right: [2 ** (-8 * head / c.num_heads) for head in range(c.num_heads)]),
        ("in order", lambda c, right: sorted(right, reverse=True)),
        ("of eight", lambda c, right: [2.0 ** -(head + 1) for head in range(c.num_heads)]),
    ):
        yield FamilyFault(("alibi-slopes",), name, SCORES, alibi, exchanged=_slopes(slopes))
    yield FamilyFault(("alibi-sign",), "added", SCORES, alibi, exchanged=_slopes(lambda c, right: -right))
    yield FamilyFault(("alibi-missing",), "missing", SCORES, alibi, fields_to(positions="none"))
    scaled = _slopes(lambda c, right: right / math.sqrt(c.head_dim))
    yield FamilyFault(("alibi-scaled",), "scaled", SCORES, alibi, exchanged=scaled)


def _norm_faults() -> Iterator[FamilyFault]:
    rms, both = where(norm="rms"), where(norm_position="both")
    yield FamilyFault(("norm-gain",), "the other", RMS_NORMS, rms, _other("norm_gain", "weight", "one-plus-weight"))
    yield FamilyFault(("norm-eps",), "1e-3", f"{RMS_NORMS}|.*gated_context", rms, fields_to(norm_eps=1e-3))
    yield FamilyFault(("norm-eps",), "3e-6", f"{RMS_NORMS}|.*gated_context", rms, fields_to(norm_eps=3e-6))
    outside = _rms(lambda x, eps: x / (_root(x) + eps))
    yield FamilyFault(("norm-eps-placement",), "outside", RMS_NORMS, rms, exchanged=outside)
    centred = _rms(lambda x, eps: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps))
    yield FamilyFault(("norm-kind",), "layer norm", RMS_NORMS, rms, exchanged=centred)
    unbiased = _rms(lambda x, eps: x / np.sqrt(np.square(x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + eps))
    yield FamilyFault(("norm-variance",), "n - 1", RMS_NORMS, rms, exchanged=unbiased)
    anywhere = r".*(_norm|\.output)"
    yield FamilyFault(("norm-placement",), "pre", anywhere, both, fields_to(norm_position="pre"))
    beside = where(branches="parallel")
    yield FamilyFault(("residual-source",), "sequential", anywhere, beside, fields_to(branches="sequential"))
    one_norm, place = where(branches="parallel-one-norm"), r".*\.feed_forward\.hidden"
    wrong = {"transformer.layer": _in_turn}
    yield FamilyFault(("residual-source",), "sequential, one norm", place, one_norm, exchanged=wrong)
    branch = where(norm_position="branch")
    yield FamilyFault(("norm-placement",), "before the sublayers", anywhere, branch, fields_to(norm_position="pre"))
    yield FamilyFault(("norm-placement",), "behind the residual", anywhere, branch, fields_to(norm_position="post"))
    swapped = _swapped("self_attention_norm", "self_attention_post_norm")
    yield FamilyFault(("norm-swapped",), "before and behind", NORMS, both, parameters=swapped)
    swapped = _swapped("self_attention_norm", "feed_forward_norm")
    acts = all_of(unless(where(branches="parallel-one-norm")), having("feed_forward_dim"))
    yield FamilyFault(("norm-swapped",), "two sublayers", NORMS, acts, parameters=swapped)
    unnormed: Acts = lambda config: not all(own.attention_norm for own in config.layer_kinds.values())  # noqa: E731
    place = r".*\.self_attention\.(query|key|value)"
    for name, gain in (("gain 1", np.ones_like), ("embeddings' norm", lambda weight: weight)):
        normed = functools.partial(_with_all_norms, gain)
        wrong = {"layers.sublayer_input": _normed_everywhere}
        yield FamilyFault(("norm-unwanted",), name, place, unnormed, parameters=normed, exchanged=wrong)
    first = r"\w+\.(embedding_norm|layers\.0\..*)"
    yield FamilyFault(("norm-missing",), "embedding", first, having("embedding_norm"), fields_to(embedding_norm=False))


def _feed_forward_faults() -> Iterator[FamilyFault]:
    gated = all_of(having("gated"), unless(having("num_experts")))
    yield FamilyFault(("gate-swapped",), "swapped", HIDDEN, gated, parameters=_swapped("gate", "up"))
    unbounded = where(gate_limit=None)
    yield FamilyFault(("gate-missing",), "without gate", HIDDEN, all_of(gated, unbounded), fields_to(gated=False))
    yield from _bound_faults()
    for name, variant, change in (
        ("gate-missing", "gate alone", lambda function, gate, up: function(gate)),
        ("gate-activation", "both", lambda function, gate, up: function(gate) * function(up)),
        ("gate-activation", "product", lambda function, gate, up: function(gate * up)),
        ("activation", "none", lambda function, gate, up: gate * up),
    ):
        yield FamilyFault((name,), variant, HIDDEN, gated, exchanged=_fed(change))
    for kind in ("relu", "gelu", "gelu-tanh", "gelu-quick", "silu"):
        acts = all_of(unless(where(activation=kind)), unless(having("num_experts")))
        yield FamilyFault(("activation",), kind, HIDDEN, acts, fields_to(activation=kind))
    dense = unless(having("num_experts"))
    yield FamilyFault(("activation",), "sigmoid", HIDDEN, dense, exchanged=_activations(functional.sigmoid))


def _bound_faults() -> Iterator[FamilyFault]:
    """gpt-oss: min(gate, 7) · σ(1.702 gate) · (clip(up, −7, 7) + 1)."""
    place, bounded, offset = rf"{HIDDEN}|{FED}", having("gate_limit"), having("up_offset")
    for name, fields in (("missing", fields_to(gate_limit=None)), ("7", fields_to(gate_limit=7.0))):
        yield FamilyFault(("gate-limit",), name, place, bounded, fields)
    for name, change in (
        ("both sides", lambda act, most, gate, up: act(np.clip(gate, -most, most)) * (np.clip(up, -most, most) + 1)),
        ("up alone", lambda act, most, gate, up: act(gate) * (np.clip(up, -most, most) + 1)),
        ("gate alone", lambda act, most, gate, up: act(np.minimum(gate, most)) * (up + 1)),
        ("above alone", lambda act, most, gate, up: act(np.minimum(gate, most)) * (np.minimum(up, most) + 1)),
    ):
        yield FamilyFault(("gate-limit",), name, place, bounded, exchanged=_bounded(change))
    yield FamilyFault(("up-offset",), "missing", place, offset, fields_to(up_offset=0.0))
    to_gate = _bounded(lambda act, most, gate, up: (act(np.minimum(gate, most)) + 1) * np.clip(up, -most, most))
    yield FamilyFault(("up-offset",), "of the gate", place, offset, exchanged=to_gate)
    yield FamilyFault(("activation",), "silu for 1.702", place, bounded, fields_to(activation="silu"))


def _swish(z: Any) -> Any:
    return z / (1 + np.exp(-z))


def _attention_gate_faults() -> Iterator[FamilyFault]:
    gates: dict[str, Callable[[Any], Any]] = {"none": np.ones_like, "no sigmoid": lambda z: z, "silu": _swish}
    for name, gate in gates.items():
        exchanged = {"attention.sigmoid": functools.partial(constantly, gate)}
        yield FamilyFault(("attention-gate",), name, ".*gated_context", having("attention_gate"), exchanged=exchanged)


def _sink_faults() -> Iterator[FamilyFault]:
    sunk = having("attention_sinks")
    yield FamilyFault(
        ("attention-sinks",), "missing", WEIGHTS, sunk, fields_to(attention_sinks=False), parameters=_no_sinks
    )
    changes: dict[str, Callable[[Any], Any]] = {
        "zero": lambda x: x * 0,
        "negated": lambda x: -x,
        "of the first head": lambda x: np.full_like(x, x[0]),
    }
    for name, change in changes.items():
        other = replaced(lambda key, x, change=change: change(x) if key.endswith(".sinks") else x)  # type: ignore[misc]
        yield FamilyFault(("attention-sinks",), name, WEIGHTS, sunk, parameters=other)
    scaled: Callable[[Config, Arrays], Arrays] = lambda config, parameters: {  # noqa: E731
        name: x * config.score_scale if name.endswith(".sinks") else x for name, x in parameters.items()
    }
    yield FamilyFault(("attention-sinks",), "scaled", WEIGHTS, sunk, parameters=scaled)

    def kept(config: Config, right: Any, scores: Any, mask: Any, hidden: float, sinks: Any) -> Any:
        weights = right(scores, mask, hidden, sinks)
        weights[..., 0] += 1 - weights.sum(-1)
        return weights

    yield FamilyFault(("attention-sinks",), "to the first key", WEIGHTS, sunk, exchanged=_weights(kept))

    def weakly(config: Config, right: Any, scores: Any, mask: Any, hidden: float, sinks: Any) -> Any:
        shown, sink = np.where(mask, scores, scores.dtype.type(-10)), sinks[:, None, None]
        largest = np.maximum(shown.max(-1, keepdims=True), sink)
        likely = np.exp(shown - largest)
        return likely / (likely.sum(-1, keepdims=True) + np.exp(sink - largest))

    yield FamilyFault(("mask-value",), "-10, beside a sink", WEIGHTS, sunk, exchanged=_weights(weakly))


def _latent_faults() -> Iterator[FamilyFault]:
    """Mistakes in latent attention: the norms of the latents, the part that is rotated, and the scale."""
    latent = having("key_value_rank")
    both, low = all_of(latent, having("query_rank")), attention.latent

    def unnormalised(role: str) -> dict[str, Wrong]:
        def changed(config: Config, parameters: Any, name: str, x: Any, tap: Any) -> Any:
            if name != role:
                return low(config, parameters, name, x, tap)
            return tap(f"{name}_latent", linear(parameters[f"{name}_latent"], x))

        return {"attention.latent": lambda _: changed}

    place = r".*\.(query|key_value)_latent"
    yield FamilyFault(("latent-norm",), "query", place, both, exchanged=unnormalised("query"))
    yield FamilyFault(("latent-norm",), "key and value", place, latent, exchanged=unnormalised("key_value"))
    ones = replaced(lambda name, x: x * 0 + 1 if name.endswith("key_value_latent_norm.weight") else x)
    yield FamilyFault(("latent-norm",), "without gain", place, latent, parameters=ones)
    for eps in (1e-3, 3e-6):
        yield FamilyFault(("norm-eps",), f"{eps:g} of latents", place, latent, exchanged=_latents_with(eps))
    first = {
        "attention.rotate_features": lambda _: lambda config, x, tables: positions.rotate(x, tables, config.rope_layout)
    }
    yield FamilyFault(("rotary-part",), "first", ROTATED, latent, exchanged=first)
    for name, factor in (
        ("without positions", lambda config: (config.head_dim / config.projected_key_dim) ** 0.5),
        ("mscale missing", lambda config: 1 / config.attention_multiplier),
        ("mscale once", lambda config: config.attention_multiplier**-0.5),
    ):
        fields = _multiplied(factor)
        yield FamilyFault(("attention-scale",), name, SCORES, latent, fields)


def _latents_with(eps: float) -> dict[str, Wrong]:
    """Latents normalised with another eps, as by a norm that is made without the configuration's."""

    def latent(config: Config, parameters: Any, name: str, x: Any, tap: Any) -> Any:
        x, gain = linear(parameters[f"{name}_latent"], x), parameters[f"{name}_latent_norm"]["weight"]
        return tap(f"{name}_latent", x / np.sqrt(np.square(x).mean(-1, keepdims=True) + x.dtype.type(eps)) * gain)

    return {"attention.latent": functools.partial(constantly, latent)}


def _multiplied(factor: Callable[[Config], float]) -> Callable[[Config], dict[str, Any]]:
    return lambda config: {"attention_multiplier": config.attention_multiplier * factor(config)}


def _no_sinks(config: Config, parameters: Arrays) -> Arrays:
    return {name: value for name, value in parameters.items() if not name.endswith(".sinks")}


CHOSEN, SHARES, FED = r".*\.router_chosen", r".*\.router_weights", r".*\.feed_forward\.output"


def _expert_faults() -> Iterator[FamilyFault]:
    routed, corrected = having("num_experts"), having("router_correction")
    some: Acts = lambda config: 1 < config.experts_per_token < config.num_experts  # noqa: E731
    for name, fields in (
        ("one", fields_to(experts_per_token=1)),
        ("one more", lambda config: {"experts_per_token": config.experts_per_token + 1}),
        ("all", lambda config: {"experts_per_token": config.num_experts}),
    ):
        acts = all_of(routed, some) if name != "all" else all_of(routed, some, where(router_groups=1))
        yield FamilyFault(("router-count",), name, CHOSEN, acts, fields)
    wrong = {
        "mixture.experts.choose": lambda _: lambda config, scores, correction: _best(-scores, config.experts_per_token)
    }
    yield FamilyFault(("router-choice",), "lowest", CHOSEN, all_of(routed, where(router_groups=1)), exchanged=wrong)
    other = _other("router_normalized", True, False)
    yield FamilyFault(("router-normalization",), "the other", SHARES, routed, other)
    place = rf"{CHOSEN}|{SHARES}"
    yield FamilyFault(("router-scores",), "the other", place, routed, _other("router_scores", "softmax", "sigmoid"))
    for name, change in (
        ("missing", lambda config, scores, chosen: chosen),
        ("equal", lambda config, scores, chosen: chosen / config.experts_per_token),
    ):
        weights = {"mixture.experts.router_weights": lambda _, change=change: change}
        yield FamilyFault(("router-weights",), name, SHARES, routed, exchanged=weights)
    zeros = replaced(lambda name, value: value * 0 if name.endswith("router_correction") else value)
    yield FamilyFault(("router-correction",), "missing", CHOSEN, corrected, parameters=zeros)
    wide = lambda config: {"router_groups_chosen": config.router_groups}  # noqa: E731
    yield FamilyFault(("router-groups",), "all", CHOSEN, lambda config: config.router_groups > 1, wide)
    yield FamilyFault(
        ("router-scale",), "missing", SHARES, unless(where(router_scale=1.0)), fields_to(router_scale=1.0)
    )
    yield from _faults_of_outputs(routed)


def _faults_of_outputs(routed: Acts) -> Iterator[FamilyFault]:
    yield FamilyFault(("expert-order",), "reversed", FED, routed, parameters=_experts(lambda i, count: count - 1 - i))
    yield FamilyFault(("expert-order",), "rolled", FED, routed, parameters=_experts(lambda i, count: (i + 1) % count))
    yield from _packing_faults(routed)
    none = {"mixture.experts.shared_expert": lambda _: lambda config, parameters, x, tap: 0 * x}
    yield FamilyFault(("shared-expert",), "missing", FED, having("shared_expert_dim"), exchanged=none)
    ungated = fields_to(shared_expert_gate=False)
    yield FamilyFault(("shared-expert-gate",), "missing", FED, having("shared_expert_gate"), ungated)
    place = rf"{FED}|{HIDDEN}"
    yield FamilyFault(("gate-swapped",), "in experts", place, routed, parameters=_swapped("gate", "up"))
    yield FamilyFault(("activation",), "in experts", place, routed, fields_to(activation="gelu-tanh"))
    biases = replaced(lambda name, x: x * 0 if name.endswith("router.bias") else x)
    yield FamilyFault(("bias-dropped",), "router", r".*\.router_logits", having("router_bias"), parameters=biases)


def _packing_faults(routed: Acts) -> Iterator[FamilyFault]:
    """Weights of four bits that are read in another order, or with another exponent."""
    for name, change in (
        ("high half first", lambda x: np.stack([x[:, 1::2], x[:, ::2]], axis=-1).reshape(x.shape)),
        ("an exponent more", lambda x: x + x),
        ("an exponent less", lambda x: x * x.dtype.type(0.5)),
    ):
        other = replaced(lambda key, x, change=change: change(x) if ".experts." in key and x.ndim == 2 else x)  # type: ignore[misc]
        yield FamilyFault(("expert-packing",), name, FED, routed, parameters=other)


def _best(scores: Any, count: int) -> Any:
    return (scores >= np.sort(scores, axis=-1)[..., -count, None]).astype(scores.dtype)


def _experts(source: Callable[[int, int], int]) -> Callable[[Config, Arrays], Arrays]:
    """The parameters of each expert taken from another one."""

    def changed(config: Config, parameters: Arrays) -> Arrays:
        def from_other(name: str) -> str:
            scope, marker, rest = name.partition(".experts.")
            number, _, role = rest.partition(".")
            return f"{scope}{marker}{source(int(number), config.num_experts)}.{role}" if marker else name

        return {name: parameters[from_other(name)] for name in parameters}

    return changed


def _embedding_faults() -> Iterator[FamilyFault]:
    scale = _other("embedding_scale", "none", "embed_dim")
    of_tokens = unless(lambda config: config.reads_pixels or config.reads_frames)
    yield FamilyFault(("embedding-scale",), "the other", EMBEDDING, of_tokens, scale)
    factor = unless(where(embedding_multiplier=1.0))
    yield FamilyFault(
        ("embedding-scale",), "multiplier missing", EMBEDDING, factor, fields_to(embedding_multiplier=1.0)
    )
    offset, counts = having("position_offset"), where(position_count="visible")
    moved = _ids(lambda ids, visible: np.maximum(ids - 1, 0))
    yield FamilyFault(("position-offset",), "-1", EMBEDDING, offset, exchanged=moved)
    moved = _ids(lambda ids, visible: np.maximum(ids - 2, 0))
    yield FamilyFault(("position-offset",), "-2", EMBEDDING, offset, exchanged=moved)
    count = _other("position_count", "all", "visible")
    yield FamilyFault(("position-count",), "the other", EMBEDDING, offset, count)
    on = _ids(lambda ids, visible: np.cumsum(visible, axis=1) + 1)
    yield FamilyFault(("position-count",), "padding goes on", EMBEDDING, counts, exchanged=on)
    waves = where(positions="sinusoidal")
    yield FamilyFault(("position-layout",), "interleaved", EMBEDDING, waves, fields_to(rope_layout="interleaved"))
    yield FamilyFault(("position-frequency",), "base 1234", EMBEDDING, waves, fields_to(rope_theta=1234.0))
    tied = all_of(having("tied_head"), unless(_ROTARY), unless(having("mel_bins")))
    yield FamilyFault(("padding-row",), "zeroed", rf"{EMBEDDING}|{LOGITS}", tied, parameters=_zero_padding)
    yield FamilyFault(("padding-row",), "zeroed where looked up", EMBEDDING, tied, exchanged=_zero_where_looked_up())
    learned = all_of(having("embedding_norm"), where(positions="learned"))
    place = r"\w+\.embedding_norm"
    yield FamilyFault(("norm-placement",), "before the positions", place, learned, exchanged=_norm_first())


def _further_faults() -> Iterator[FamilyFault]:
    typed, masked = having("num_token_types"), where(padding="attention-mask")
    yield FamilyFault(("token-types",), "ignored", EMBEDDING, typed, inputs=_no_types)
    for name, change in (
        ("zeros", lambda c, given: np.zeros_like(given["token_types"])),
        ("ones", lambda c, given: np.ones_like(given["token_types"])),
        ("turned", lambda c, given: 1 - given["token_types"]),
    ):
        yield FamilyFault(("token-types",), name, EMBEDDING, typed, inputs=_given("token_types", change))
    place = rf"{EMBEDDING}|{WEIGHTS}"
    yield FamilyFault(("attention-mask",), "exchanged", place, all_of(masked, typed), inputs=_exchanged_inputs)
    yield FamilyFault(("attention-mask",), "by token", place, masked, inputs=_given("attention_mask", _reshown))
    ones = _given("attention_mask", lambda c, given: np.ones_like(given["attention_mask"]))
    yield FamilyFault(("attention-mask", "padding-ignored"), "ignored", place, masked, inputs=ones)
    inverse = _given("attention_mask", lambda c, given: 1 - given["attention_mask"])
    yield FamilyFault(("attention-mask", "mask-polarity"), "inverted", place, masked, inputs=inverse)


def _pooling_faults() -> Iterator[FamilyFault]:
    pooled: Acts = lambda config: config.is_pooled  # noqa: E731
    place = r"pooled|logits"
    for name, other, choose in (
        ("the row's end", "", lambda c, x, *_: x[:, -1]),
        ("the row's mean", "", lambda c, x, *_: x.mean(axis=1)),
        ("the row's begin", "first", lambda c, x, *_: x[:, 0]),
        ("a mean", "mean", _mean_of_visible),
        ("an end", "last", _last_visible),
    ):
        acts = all_of(pooled, unless(where(pooling=other)))
        chosen = {"transformer.pool": functools.partial(constantly, choose)}
        yield FamilyFault(("pooling",), name, place, acts, exchanged=chosen)
    projected: Acts = lambda config: config.has_pooler  # noqa: E731
    unprojected = {"head.linear": lambda c: lambda p, x: x if p["weight"].shape[0] == c.embed_dim else linear(p, x)}
    yield FamilyFault(
        ("pooling",), "unprojected", LOGITS, projected, exchanged={"head.POOLERS": _poolers(None)} | unprojected
    )
    yield FamilyFault(("pooling",), "without activation", LOGITS, projected, exchanged={"head.POOLERS": _poolers(None)})
    erf = _poolers(feed_forward.ACTIVATIONS["gelu"])
    acts = all_of(projected, unless(where(pooler="gelu")))
    yield FamilyFault(("pooling",), "gelu", LOGITS, acts, exchanged={"head.POOLERS": erf})
    pooler = replaced(lambda name, value: value.T if name == "pooler.weight" else value)
    yield FamilyFault(("weight-transpose",), "pooler", LOGITS, projected, parameters=pooler)


def _head_faults() -> Iterator[FamilyFault]:
    scale = _other("head_scale", "none", "embed_dim")
    yield FamilyFault(("head-scale",), "the other", LOGITS, having("tied_head"), scale)
    factor = unless(where(head_multiplier=1.0))
    yield FamilyFault(("head-scale",), "multiplier missing", LOGITS, factor, fields_to(head_multiplier=1.0))
    inverse: Any = lambda config: {"head_multiplier": 1 / config.head_multiplier}  # noqa: E731
    yield FamilyFault(("head-scale",), "multiplier inverted", LOGITS, factor, inverse)
    factor = unless(where(residual_multiplier=1.0))
    missing, place = fields_to(residual_multiplier=1.0), r".*\.output|.*_norm"
    yield FamilyFault(("residual-multiplier",), "multiplier missing", place, factor, missing)
    for cap in (None, 30.0, 5.5):
        yield FamilyFault(("logit-cap",), f"{cap}", LOGITS, having("final_softcap"), fields_to(final_softcap=cap))
    for cap in (30.0, 5.5):
        uncapped = all_of(where(head="logits"), unless(having("final_softcap")))
        yield FamilyFault(("logit-cap",), f"{cap}, not wanted", LOGITS, uncapped, fields_to(final_softcap=cap))
    yield FamilyFault(("head-tied",), "tied", LOGITS, _UNTIED, parameters=_head_of_table)
    yield from _pooling_faults()
    for name, wrong in (
        ("left out", lambda c, p, x: x),
        ("linear", lambda c, p, x: normalization.norm(c, p["head_norm"], linear(p["head_transform"], x))),
        ("not normalised", lambda c, p, x: feed_forward.ACTIVATIONS[c.activation](linear(p["head_transform"], x))),
        ("relu", lambda c, p, x: normalization.norm(c, p["head_norm"], np.maximum(linear(p["head_transform"], x), 0))),
    ):
        exchanged = {"head.transform_for_head": functools.partial(constantly, wrong)}
        yield FamilyFault(("head-transform",), name, LOGITS, having("head_transform"), exchanged=exchanged)


def _usual_faults() -> Iterator[FamilyFault]:
    """Mistakes of the presets' catalogue, in parts that are otherwise here."""
    scale = _other("attention_scale", "head_dim", "embed_dim")
    yield FamilyFault(("attention-scale",), "the other", SCORES, always, scale)
    yield FamilyFault(("attention-scale",), "1.37 times", SCORES, always, fields_to(attention_multiplier=1.37))
    causal = where(architecture="decoder")
    unmasked = {"masks.causal_mask": lambda _: lambda at, keys: np.ones((1, 1, at.shape[1], keys), bool)}
    yield FamilyFault(("causal-missing",), "missing", WEIGHTS, causal, exchanged=unmasked)
    parts, roles = r".*\.(key|value)", r".*\.(query|key|value)"
    whole = unless(having("key_value_rank"))
    yield FamilyFault(("weight-swapped",), "key and value", parts, whole, parameters=_swapped("key", "value"))
    values = replaced(lambda name, x: x * 0 if name.endswith("value.bias") else x)
    yield FamilyFault(("bias-dropped",), "value", r".*\.value", having("qkv_bias"), parameters=values)
    downs = replaced(lambda name, x: x * 0 if name.endswith("down.bias") else x)
    place = r".*feed_forward\.output"
    acts = all_of(having("feed_forward_bias"), unless(having("num_experts")))
    yield FamilyFault(("bias-dropped",), "down", place, acts, parameters=downs)
    yield FamilyFault(("packed-order",), "read by head", roles, _packs, parameters=_packed(True))
    yield FamilyFault(("packed-order",), "laid by head", roles, _packs, parameters=_packed(False))
    acts = all_of(where(architecture="decoder", branches="sequential"), unless(where(norm_position="post")))
    wrong, place = {"layers.sublayer_input": _of_the_layers_input}, r".*\.feed_forward(_norm|\.hidden)"
    yield FamilyFault(("residual-source",), "parallel", place, acts, exchanged=wrong)
    for layout in ("neighbours", "halves"):
        acts = all_of(_ROTARY, lambda config: config.rotated_dim > 4)  # four features: it is the other layout
        rows = _rows_for(layout)
        yield FamilyFault(("rotary-rows",), layout, r".*\.(query|key)", acts, parameters=rows)

    def interleaved(_: Config) -> Callable[..., Any]:
        return lambda x, heads: split_heads(x.reshape(*x.shape[:2], -1, heads).swapaxes(2, 3).reshape(x.shape), heads)

    yield FamilyFault(("head-order",), "interleaved", roles, always, exchanged={"attention.split_heads": interleaved})


FAULTS = tuple(_faults())


def _uncatalogued() -> Iterator[FamilyFault]:
    """Faults outside the catalogue: they have to be found and placed, and not named."""

    def fault(says: str, place: str, acts: Acts, **made: Any) -> FamilyFault:
        return FamilyFault((), says, place, acts, **made)

    def turned_backwards(_: Config) -> Callable[..., Any]:
        right = positions.rotary_frequencies
        return lambda config, **given: right(config, **given)[::-1]

    wrong = {"positions.rotary_frequencies": turned_backwards}
    yield fault("the slowest pair first", ROTATED, _ROTARY, exchanged=wrong)
    mean = _rms(lambda x, eps: x / (np.abs(x).mean(-1, keepdims=True) + eps))
    yield fault("mean magnitude instead of root mean square", NORMS, where(norm="rms"), exchanged=mean)
    squared, dense = _fed(lambda function, gate, up: function(gate) ** 2 * up), unless(having("num_experts"))
    yield fault("the gate is squared", HIDDEN, all_of(having("gated"), dense), exchanged=squared)
    doubled = {"mixture.experts.router_weights": lambda _: lambda config, scores, chosen: (scores * chosen) ** 2}
    yield fault("the experts' scores are squared", SHARES, having("num_experts"), exchanged=doubled)
    bent = _scores(
        lambda query, key, scale, cap, bias: _plus(np.arctan(query @ key.swapaxes(-2, -1) * scale / cap) * cap, bias)
    )
    yield fault("the cap is an arc tangent", SCORES, having("attention_softcap"), exchanged=bent)
    doubled = _buckets(lambda right, at, count, most, *, both: right(2 * at, count, most, both=both))
    yield fault("distances are doubled", SCORES, having("has_relative_bias"), exchanged=doubled)
    squared = _slopes(lambda config, right: right**2)
    yield fault("slopes are squared", SCORES, where(positions="alibi"), exchanged=squared)
    place = r".*\.(scores|context)"
    yield fault("groups in the opposite order", place, _grouped, exchanged={"attention.repeat_heads": _backwards})
    typed = replaced(lambda name, value: value[::-1] * 2 if name.endswith("token_type_embedding.weight") else value)
    yield fault("types exchanged and doubled", EMBEDDING, having("num_token_types"), parameters=typed)


UNCATALOGUED = tuple(_uncatalogued())
