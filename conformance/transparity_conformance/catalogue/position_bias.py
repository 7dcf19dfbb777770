"""Faults of the bias that is added to scores: relative position buckets and ALiBi slopes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, WalkState, fault, made
from transparity_conformance.catalogue.sites import Value, distances_at, normalized_and_rotated
from transparity_conformance.oracle.undetermined import length_at, split
from transparity_numpy.positions.in_attention import alibi_slopes, relative_buckets, score_bias


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap != "scores" or sublayer != "self_attention":
        return
    if config.has_relative_bias:
        yield from _relative_faults(config, site)
        yield from made("relative biases", config, __name__)
    if config.positions == "alibi":
        for name, slopes in SLOPES.items():
            if not np.array_equal(slopes(config.num_heads), alibi_slopes(config.num_heads)):
                yield fault("alibi-slopes", name, patch=partial(sloped, slopes))
        yield from made("ALiBi", config, __name__)


def bias_at(state: WalkState, site: str) -> Value | None:
    """Return the position bias in the scores at `site`, if any."""
    scope, sublayer, _ = split(site)
    if sublayer != "self_attention" or not state.config.has_score_bias:
        return None
    stack, length = scope.split(".")[0], length_at(state, site)
    table = {"relative_bias": {"weight": state.parameters.get(f"{stack}.relative_bias.weight")}}
    dtype = normalized_and_rotated(state, f"{scope}.{sublayer}", "query").dtype
    return score_bias(state.config, table, np.arange(length)[None], length, dtype, both=stack == "encoder")


Buckets = Callable[[TransformerConfig, np.ndarray, bool], np.ndarray]
"""(configuration, distances, whether both directions have buckets) → buckets."""


def buckets_of(config: TransformerConfig, distances: np.ndarray, both: bool, most: int | None = None) -> np.ndarray:
    return relative_buckets(distances, config.relative_buckets, most or config.relative_max_distance, both=both)


def _relative_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    way = "one direction: a later key has the distance 0"
    if not site.startswith("encoder"):
        way = "two directions, although only the past is visible: half of the buckets are unused"
    other = partial(_bucketed, says=f"buckets have {way}")
    yield other("relative-buckets", "other direction", lambda c, d, both: buckets_of(c, d, not both))
    for most in (128, 64, 32, 20):
        if most != config.relative_max_distance:
            says = f"buckets are computed for distances up to {most} instead of {config.relative_max_distance}"
            yield _bucketed("relative-buckets", f"up to {most}", partial(buckets_of, most=most), most, says=says)
    if int(site.split(".")[2]) > 0:
        yield fault("relative-missing", "behind the first layer", patch=partial(weighted, lambda c: 0.0))


def _bucketed(identity: str, variant: str, buckets: Buckets, value: float | None = None, says: str = "") -> Fault:
    return fault(identity, variant, says=says, patch=partial(with_buckets, buckets), value=value)


def with_buckets(buckets: Buckets, state: WalkState, site: str, value: Value) -> Value:
    stack = site.split(".")[0]
    table = state.parameters[f"{stack}.relative_bias.weight"]
    bias = table[buckets(state.config, distances_at(state, site), stack == "encoder")]
    return value - bias_at(state, site) + np.moveaxis(bias, -1, 1)


def undivided(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    exact = max(1, config.relative_buckets // (4 if both else 2))
    return buckets_of(config, distances, both, config.relative_max_distance * exact)


def all_exact(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    offset, count, near = _halved(config, distances, both)
    return offset + np.minimum(near, count - 1)


def shared(
    whole: Callable[[np.ndarray], np.ndarray], part: int, config: TransformerConfig, distances: np.ndarray, both: bool
) -> np.ndarray:
    """Return the bucket of each distance. The first 1/`part` of the buckets have one distance each, and later buckets
    grow geometrically. The function `whole` rounds to an integer."""
    offset, count, near = _halved(config, distances, both)
    exact = max(1, count // part) if part > 2 else count // part
    share = np.log(np.maximum(near, exact) / exact) / math.log(config.relative_max_distance / exact)
    shared = np.minimum(exact + whole(share * (count - exact)).astype(int), count - 1)
    return offset + np.where(near < exact, near, shared)


def _halved(config: TransformerConfig, distances: np.ndarray, both: bool) -> tuple[np.ndarray, int, np.ndarray]:
    count = config.relative_buckets // 2 if both else config.relative_buckets
    near = np.abs(distances) if both else np.maximum(-distances, 0)
    return count * (distances > 0) * both, count, near


def _naive_slopes(heads: int) -> np.ndarray:
    return 2.0 ** (-8 / heads * np.arange(1, heads + 1))


SLOPES: dict[str, Callable[[int], np.ndarray]] = {
    "2^(−8 i / heads)": _naive_slopes,
    "in order": lambda heads: -np.sort(-alibi_slopes(heads)),
    "from 0": lambda heads: 2.0 ** (-8 / heads * np.arange(heads)),
    "of the power above": lambda heads: _naive_slopes(2 ** math.ceil(math.log2(heads)))[:heads],
    "turned round": lambda heads: alibi_slopes(heads)[::-1],
}


def sloped(slopes: Callable[[int], np.ndarray], state: WalkState, site: str, value: Value) -> Value:
    distance = np.abs(distances_at(state, site))[:, None] * slopes(state.config.num_heads)[:, None, None]
    return value - bias_at(state, site) - distance.astype(value.dtype)


def weighted(by: Callable[[TransformerConfig], float], state: WalkState, site: str, value: Value) -> Value:
    return value + bias_at(state, site) * value.dtype.type(by(state.config) - 1)
