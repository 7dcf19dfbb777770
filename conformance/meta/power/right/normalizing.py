"""Right ways to write norms, residuals, pooling and heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import Acts, Config, FamilyFault, all_of, constantly, having, unless, where
from transparity_numpy import normalization

_RMS, _LAYER = where(norm="rms"), where(norm="layer")
_PLACED: Acts = lambda config: config.norm_position in ("both", "branch")  # noqa: E731
_POOLED: Acts = lambda config: config.is_pooled  # noqa: E731


def styles() -> Iterator[FamilyFault]:
    by_token: Acts = all_of(_POOLED, lambda config: config.pooling in ("eos", "largest"))
    all_of(having("has_pooler"), where(pooler="tanh"))
    projected = all_of(having("query_key_norm"), where(query_key_norm_over="projection"))
    for name, acts, place, function in (
        ("a reciprocal root", _RMS, "normalization.rms_norm", rms_by_reciprocal),
        ("a norm of the vector", _RMS, "normalization.rms_norm", rms_by_length),
        ("moments in float64", _LAYER, "normalization.layer_norm", layer_by_moments),
        ("gain and bias folded", _LAYER, "normalization.layer_norm", layer_folded),
        ("the weight plus the vector", where(norm_gain="one-plus-weight"), "layers.norm", plus_one_by_parts),
        ("the branch first", _PLACED, "layers.add_residual", branch_first),
        ("a multiplier on the branch", unless(where(residual_multiplier=1.0)), "layers.add_residual", multiplied),
        ("heads normalised together", projected, "attention.query_key_norm", together),
        ("pooled by weights", all_of(_POOLED, where(pooling="mean")), "transformer.pool", by_weights),
        ("pooled row by row", _POOLED, "transformer.pool", row_by_row),
        ("pooled by one-hot rows", all_of(_POOLED, unless(where(pooling="mean"))), "transformer.pool", by_one_hot),
        ("the first end by its maximum", by_token, "transformer.pool", by_maximum),
        (
            "tanh by powers",
            all_of(having("has_pooler"), where(pooler="tanh")),
            "head.POOLERS",
            {"tanh": tanh_by_powers},
        ),
        ("the head's norm in float64", having("head_transform"), "head.norm", norm_in_float64),
        ("classes by sums", where(head="classes"), "head.linear", by_sums),
    ):
        yield FamilyFault((), name, ".*", acts, exchanged={place: partial(constantly, function)})


def rms_by_reciprocal(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return weight * (
        x * (1 / np.sqrt(np.square(x).sum(-1, keepdims=True) / x.dtype.type(x.shape[-1]) + np.float32(eps)))
    )


def rms_by_length(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """√n · x / √(|x|² + n eps)."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    n = x.dtype.type(x.shape[-1])
    return x * np.sqrt(n) / np.sqrt(length * length + n * x.dtype.type(eps)) * weight


def layer_by_moments(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """The variance as E x² − (E x)²."""
    wide = x.astype(np.float64)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = np.maximum((wide * wide).mean(axis=-1, keepdims=True) - mean * mean, 0)
    return ((wide - mean) / np.sqrt(variance + eps) * weight + bias).astype(x.dtype)


def layer_folded(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """x · a + b, with one a and b for each feature."""
    rate = 1 / np.sqrt(x.var(axis=-1, keepdims=True) + x.dtype.type(eps))
    factor = weight * rate
    return x * factor + (bias - x.mean(axis=-1, keepdims=True) * factor)


def plus_one_by_parts(config: Config, parameters: Mapping[str, np.ndarray], x: np.ndarray, *_: Any, **__: Any) -> Any:
    """y + y · weight."""
    y = normalization.rms_norm(x, np.ones_like(parameters["weight"]), config.norm_eps)
    return y + y * parameters["weight"]


def branch_first(config: Config, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y * y.dtype.type(config.residual_multiplier) + x


def multiplied(config: Config, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return (x.astype(np.float64) + config.residual_multiplier * y.astype(np.float64)).astype(x.dtype)


def together(config: Config, parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """The features of all heads under one root, without moving them."""
    mean = np.square(x).mean(axis=(1, 3), keepdims=True)
    gain = normalization.gain(config, parameters["weight"]).reshape(x.shape[1], 1, -1)
    return x / np.sqrt(mean + x.dtype.type(config.norm_eps)) * gain


def by_weights(config: Config, x: np.ndarray, visible: np.ndarray, tokens: Any) -> np.ndarray:
    weights = visible / np.maximum(visible.sum(axis=1, keepdims=True), 1)
    return np.einsum("bl,bld->bd", weights.astype(x.dtype), x)


def _place(config: Config, row: Any, visible: Any) -> int:
    """Where a row is pooled."""
    if config.pooling == "first":
        return 0
    if config.pooling == "last":
        wanted = np.flatnonzero(visible)[::-1]
    else:
        wanted = np.flatnonzero(row == (config.eos_id if config.pooling == "eos" else row.max()))
    return int(wanted[0]) if len(wanted) else 0


def row_by_row(config: Config, x: np.ndarray, visible: np.ndarray, tokens: Any) -> np.ndarray:
    ids = [None] * len(x) if tokens is None else tokens
    if config.pooling == "mean":
        rows = [row[shown].sum(0) / x.dtype.type(max(shown.sum(), 1)) for row, shown in zip(x, visible, strict=True)]
    else:
        rows = [row[_place(config, i, shown)] for row, i, shown in zip(x, ids, visible, strict=True)]
    return np.stack(rows)


def by_one_hot(config: Config, x: np.ndarray, visible: np.ndarray, tokens: Any) -> np.ndarray:
    ids = [None] * len(x) if tokens is None else tokens
    places = [_place(config, i, shown) for i, shown in zip(ids, visible, strict=True)]
    return (np.eye(x.shape[1], dtype=x.dtype)[places][:, None] @ x)[:, 0]


def by_maximum(config: Config, x: np.ndarray, visible: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The largest of marks that fall from the first position on."""
    marked = tokens == (config.eos_id if config.pooling == "eos" else tokens.max(axis=1, keepdims=True))
    places = (marked * np.arange(x.shape[1], 0, -1)).argmax(axis=1)
    return np.take_along_axis(x, places[:, None, None], axis=1)[:, 0]


def tanh_by_powers(x: np.ndarray) -> np.ndarray:
    power = np.exp(-2 * np.abs(x.astype(np.float64)))
    return (np.sign(x) * (1 - power) / (1 + power)).astype(x.dtype)


def norm_in_float64(config: Config, parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    wide = {name: value.astype(np.float64) for name, value in parameters.items()}
    return normalization.norm(config, wide, x.astype(np.float64)).astype(x.dtype)


def by_sums(parameters: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """Products and their sums; other widths than the classes' by the usual function."""
    return (x[..., None, :] * parameters["weight"]).sum(axis=-1) + parameters.get("bias", x.dtype.type(0))
