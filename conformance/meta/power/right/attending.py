"""Right ways to write latent attention, sinks, gates of attention, scaled rotary tables, chunks and temperatures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import Acts, Config, FamilyFault, all_of, constantly, having, where
from transparity_numpy import attention, positions
from transparity_numpy.arithmetic.functional import linear, sigmoid, softmax
from transparity_numpy.attention import merge_heads
from transparity_numpy.normalization import head_norm

_LATENT, _SUNK = having("key_value_rank"), having("attention_sinks")
_YARN, _LONG = where(rotary_scaling="yarn"), where(rotary_scaling="longrope")
_FACTORED: Acts = all_of(where(positions="rotary"), lambda config: config.rotary_attention_factor != 1)


def styles() -> Iterator[FamilyFault]:
    chunked, tempered = where(window_kind="chunks"), having("query_temperature")
    gated, pairs = having("attention_gate"), all_of(_LATENT, where(rope_layout="interleaved"))
    for name, acts, place, function in (
        ("key and value in one matrix", _LATENT, "attention.latent_key_value", in_one_matrix),
        ("keys head by head", _LATENT, "attention.latent_key_value", head_by_head),
        ("attention to the latent", _LATENT, "layers.self_attention", absorbed),
        ("pairs moved into halves", pairs, "attention.rotate_features", pairs_in_halves),
        ("the latent's norm in float64", _LATENT, "attention.head_norm", norm_in_float64),
        ("the sink first", _SUNK, "attention.attention_weights", sink_first),
        ("the sink in the denominator", _SUNK, "attention.attention_weights", sink_in_denominator),
        ("a sigmoid of the sink", _SUNK, "attention.attention_weights", sigmoid_of_sink),
        ("the gate by tanh", gated, "attention.sigmoid", lambda x: (1 + np.tanh(x / 2)) / 2),
        (
            "the gate in float64",
            gated,
            "attention.sigmoid",
            lambda x: (1 / (1 + np.exp(-np.float64(x)))).astype(x.dtype),
        ),
        ("YaRN by a mask", _YARN, "positions.rotary_frequencies", yarn_by_mask),
        ("YaRN in float32", _YARN, "positions.rotary_frequencies", yarn_in_float32),
        ("LongRoPE by wavelengths", _LONG, "positions.rotary_frequencies", long_by_wavelengths),
        ("the factor on what is rotated", _FACTORED, "transformer.rotary_tables", unfactored),
        ("tables of all positions", _FACTORED, "transformer.rotary_tables", looked_up),
        ("chunks as blocks", chunked, "transformer.window_mask", blocks),
        ("chunks one by one", chunked, "transformer.window_mask", chunks),
        ("temperature in float32", tempered, "transformer.query_temperature", tempered_in_float32),
        ("temperature one by one", tempered, "transformer.query_temperature", temperatures),
    ):
        exchanged = {place: partial(constantly, function)}
        if function is unfactored:
            exchanged |= {"attention.rotate_features": partial(constantly, rotated_and_scaled)}
        yield FamilyFault((), name, ".*", acts, exchanged=exchanged)
    yield from _key_biases()


def _key_biases() -> Iterator[FamilyFault]:
    """A bias of the keys adds the same to all scores of a query: no weight changes."""
    unbiased = all_of(having("qkv_bias"), where(key_bias=False))

    def biased(role: str, config: Config, parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        biases = {name: x for name, x in parameters.items() if name.endswith(f"attention.{role}.bias")}
        return parameters | {name.replace(f".{role}.bias", ".key.bias"): x for name, x in biases.items()}

    for role in ("query", "value"):
        name = f"keys with the bias of the {role}"
        yield FamilyFault((), name, ".*", unbiased, lambda config: {"key_bias": True}, partial(biased, role))


def _latent_parts(
    config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The normalised latent, and the features that are rotated, of one product of both matrices."""
    rank = config.key_value_rank or 0
    both = x @ np.concatenate([parameters[f"key_{part}"]["weight"] for part in ("value_latent", "rotary")]).T
    low = head_norm(config, parameters["key_value_latent_norm"], both[..., :rank])
    return tap("key_value_latent", low), both[..., rank:]


def in_one_matrix(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> tuple[Any, Any]:
    """Rows of each head's key, then of its value, as the checkpoints have them."""
    low, turned = _latent_parts(config, parameters, x, tap)
    matrices = [parameters[role]["weight"].reshape(config.num_heads, -1, low.shape[-1]) for role in ("key", "value")]
    packed = np.concatenate(matrices, axis=1)
    both = (low @ packed.reshape(-1, low.shape[-1]).T).reshape(*low.shape[:2], config.num_heads, -1).swapaxes(1, 2)
    key, value = np.split(both, [matrices[0].shape[1]], axis=-1)
    repeated = np.repeat(turned[:, None], config.num_heads, axis=1)
    return tap("key", np.concatenate([key, repeated], axis=-1)), tap("value", value)


def head_by_head(config: Config, parameters: Mapping[str, Any], x: np.ndarray, tap: Any) -> tuple[Any, Any]:
    low, turned = _latent_parts(config, parameters, x, tap)
    keys, values = (np.split(parameters[role]["weight"], config.num_heads) for role in ("key", "value"))
    key = np.stack([np.concatenate([low @ own.T, turned], axis=-1) for own in keys], axis=1)
    return tap("key", key), tap("value", np.stack([low @ own.T for own in values], axis=1))


def absorbed(
    config: Config, parameters: Mapping[str, Any], x: np.ndarray, context: Any, tap: Any, cache: Any = None
) -> np.ndarray:
    """Queries are mapped to the latent and attend to it: no key or value of a head is computed."""
    query = attention.project_query(config, parameters, x, tap, context.rotary)
    low, turned = _latent_parts(config, parameters, x, tap)
    keys, values = (
        parameters[role]["weight"].reshape(config.num_heads, -1, low.shape[-1]) for role in ("key", "value")
    )
    plain, width = keys.shape[1], low.shape[-1]
    pieces = np.zeros((*turned.shape[:2], plain), x.dtype)  # features that no position turns
    turned = attention.rotate_features(config, np.concatenate([pieces, turned], axis=-1)[:, None], context.rotary)
    reading = np.einsum("bhqd,hdr->bhqr", query[..., :plain], keys)
    queries = np.concatenate([reading, query[..., plain:]], axis=-1)
    read = np.concatenate([low[:, None], turned[..., plain:]], axis=-1)
    scores = tap("scores", attention.attention_scores(queries, read, config.score_scale))
    weights = tap("weights", attention.attention_weights(scores, context.mask, config.masked_score))
    made = np.einsum("bhqr,hvr->bhqv", weights @ read[..., :width], values)
    result: np.ndarray = tap("output", linear(parameters["output"], tap("context", merge_heads(made))))
    return result


def pairs_in_halves(config: Config, x: np.ndarray, rotary: Any) -> np.ndarray:
    """The pairs' first features, then their second, as DeepSeek's code leaves them."""
    rest = config.head_dim - config.rotated_dim
    pairs = x[..., rest:].reshape(*x.shape[:-1], -1, 2)
    halves = pairs.swapaxes(-2, -1).reshape(*x.shape[:-1], -1)
    return np.concatenate([x[..., :rest], positions.rotate(halves, rotary, "halves")], axis=-1)


def norm_in_float64(config: Config, parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    wide, gain = x.astype(np.float64), parameters["weight"].astype(np.float64) + (config.norm_gain != "weight")
    return (wide * ((wide**2).mean(axis=-1, keepdims=True) + config.norm_eps) ** -0.5 * gain).astype(x.dtype)


def _shown(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return np.where(mask, scores, scores.dtype.type(-1e30))


def sink_first(scores: np.ndarray, mask: np.ndarray, masked_score: float, sinks: np.ndarray) -> np.ndarray:
    first = np.tile(sinks.reshape(1, -1, 1, 1), (len(scores), 1, scores.shape[2], 1))
    return softmax(np.concatenate([first, _shown(scores, mask)], axis=-1))[..., 1:]


def sink_in_denominator(scores: np.ndarray, mask: np.ndarray, masked_score: float, sinks: np.ndarray) -> np.ndarray:
    shown, sink = _shown(scores, mask), sinks[:, None, None]
    largest = np.maximum(shown.max(axis=-1, keepdims=True), sink)
    powers = np.exp(shown - largest)
    return powers / (powers.sum(axis=-1, keepdims=True) + np.exp(sink - largest))


def sigmoid_of_sink(scores: np.ndarray, mask: np.ndarray, masked_score: float, sinks: np.ndarray) -> np.ndarray:
    """The softmax of the keys, times σ(log-sum-exp − sink), as fused kernels have it."""
    shown = _shown(scores, mask)
    total = np.logaddexp.reduce(shown, axis=-1, keepdims=True)
    return softmax(shown) * sigmoid(total - sinks[:, None, None])


def yarn_by_mask(config: Config, *, beyond: bool = False) -> np.ndarray:
    """As the paper's code has it: two sets of frequencies, and a mask that falls from one to the other."""
    powers = config.rope_theta ** (np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
    low, high = positions.yarn_ends(config)
    ramp = np.clip((np.arange(len(powers)) - low) / (high - low), 0, 1)
    return 1 / (config.rotary_factor * powers) * ramp + 1 / powers * (1 - ramp)


def yarn_in_float32(config: Config, *, beyond: bool = False) -> np.ndarray:
    one = np.float32(1)
    powers = np.float32(config.rope_theta) ** (
        np.arange(0, config.rotated_dim, 2, dtype=np.float32) / config.rotated_dim
    )
    low, high = map(np.float32, positions.yarn_ends(config))
    ramp = np.clip((np.arange(len(powers), dtype=np.float32) - low) / (high - low), 0, 1)
    return one / (np.float32(config.rotary_factor) * powers) * ramp + one / powers * (one - ramp)


def long_by_wavelengths(config: Config, *, beyond: bool = False) -> np.ndarray:
    factors = config.rotary_long_factors if beyond else config.rotary_short_factors
    return 1 / (np.array(factors) * config.rope_theta ** (np.arange(0, config.rotated_dim, 2) / config.rotated_dim))


def unfactored(config: Config, at: np.ndarray, dtype: Any) -> Any:
    """Tables without the attention factor."""
    if config.positions != "rotary":
        return None
    beyond = bool(at.max() >= config.rotary_original_length)
    angles = (at[..., None] * positions.rotary_frequencies(config, beyond=beyond))[:, None]
    return np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def rotated_and_scaled(config: Config, x: np.ndarray, rotary: Any) -> np.ndarray:
    """What is rotated, times the attention factor; other features as they are."""
    first = config.head_dim - config.rotated_dim if config.key_value_rank else 0
    part = slice(first, first + config.rotated_dim)
    turned = positions.rotate(x[..., part], rotary, config.rope_layout)
    scaled = turned * x.dtype.type(config.rotary_attention_factor)
    return np.concatenate([x[..., :first], scaled, x[..., part.stop :]], axis=-1)


def looked_up(config: Config, at: np.ndarray, dtype: Any) -> Any:
    """Rows of a table of all positions."""
    if config.positions != "rotary":
        return None
    beyond = bool(at.max() >= config.rotary_original_length)
    angles = np.outer(np.arange(at.max() + 1), positions.rotary_frequencies(config, beyond=beyond))
    cosine, sine = (config.rotary_attention_factor * turn(angles) for turn in (np.cos, np.sin))
    return cosine.astype(dtype)[at][:, None], sine.astype(dtype)[at][:, None]


def blocks(at: np.ndarray, keys: int, size: int, kind: str) -> np.ndarray:
    diagonal = np.kron(np.eye(keys // size + 1), np.ones((size, size))) > 0
    return diagonal[at][..., :keys][:, None]


def chunks(at: np.ndarray, keys: int, size: int, kind: str) -> np.ndarray:
    rows = [
        [[query - query % size <= key < query - query % size + size for key in range(keys)] for query in row]
        for row in at
    ]
    return np.array(rows)[:, None]


def tempered_in_float32(own: Config, at: np.ndarray, dtype: Any) -> np.ndarray | None:
    if own.query_temperature == 0:
        return None
    pieces = np.floor((at.astype(np.float32) + own.query_temperature_first) / np.float32(own.query_temperature_length))
    factor = np.log(pieces + np.float32(1)) * np.float32(own.query_temperature) + np.float32(1)
    return factor.astype(dtype)[:, None, :, None]


def temperatures(own: Config, at: np.ndarray, dtype: Any) -> np.ndarray | None:
    if own.query_temperature == 0:
        return None
    first, length, grows = own.query_temperature_first, own.query_temperature_length, own.query_temperature
    factor = [[math.log((each + first) // length + 1) * grows + 1 for each in row.tolist()] for row in at]
    return np.array(factor, dtype)[:, None, :, None]
