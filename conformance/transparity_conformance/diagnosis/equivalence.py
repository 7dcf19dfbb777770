"""Equivalent forms of activations inside a sublayer of a port that is right.

A port may scale the query instead of the scores, number its heads differently, or drop a key bias, which the softmax
cancels. A form is equivalent if a single map, which is the same for all rows and positions, turns the reference's
values into the port's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
"""A value of the port, and the corresponding value of the reference."""


def is_equivalent(tap: str, pairs: Sequence[Pair], tolerance: float) -> bool:
    """Return whether a single map turns our values into the port's, within `tolerance` of the largest number."""
    if not pairs or not all(actual.shape == ours.shape for actual, ours in pairs):
        return False
    if not all(np.isfinite(values).all() for pair in pairs for values in pair):  # ours may be computed from the port's
        return False
    last = tap.rpartition(".")[2]
    if last == "hidden":
        return _columns_match(*_joined(pairs, _flat), tolerance)
    if last in ("scores", "weights"):
        return _heads_match(pairs, tolerance, shifted=last == "scores")
    return _is_affine(*_joined(pairs, _merged), tolerance)


def _joined(pairs: Sequence[Pair], change: Callable[[np.ndarray], np.ndarray]) -> Pair:
    return (
        np.concatenate([change(actual) for actual, _ in pairs]),
        np.concatenate([change(ours) for _, ours in pairs]),
    )


def _merged(x: np.ndarray) -> np.ndarray:
    """Reshape (batch, heads, length, head_dim) or (batch, length, features) to (positions, features)."""
    return _flat(x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) if x.ndim == 4 else x)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _is_affine(actual: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Return whether actual = ours · A + b for some A and b; False if there are not more positions than features."""
    known = np.concatenate([ours, np.ones((len(ours), 1))], axis=1)
    if len(known) <= known.shape[1] + 1:
        return False
    fitted = known @ np.linalg.lstsq(known, actual, rcond=None)[0]
    return _is_near(actual, fitted, tolerance)


def _columns_match(actual: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Return whether every hidden unit of the port is a positive multiple of one of ours; False if all are zero."""
    length = np.linalg.norm(ours, axis=0)
    likeness = (ours / np.where(length > 0, length, 1)).T @ actual
    best, scale = likeness.argmax(axis=0), likeness.max(axis=0)
    unit = ours[:, best] / np.where(length[best] > 0, length[best], 1)
    return bool((scale > 0).any()) and _is_near(actual, unit * scale, tolerance)


def _heads_match(pairs: Sequence[Pair], tolerance: float, *, shifted: bool) -> bool:
    """Return whether every head of the port is one of ours; scores may be scaled, and a constant added to each row."""
    heads = [
        _joined(pairs, lambda x, head=head: _centered(x, shifted)[:, head].ravel())  # type: ignore[misc]
        for head in range(pairs[0][0].shape[1])
    ]
    taken: set[int] = set()
    for actual, _ in heads:
        fits = (i for i, (_, ours) in enumerate(heads) if _is_near(actual, _scaled(ours, actual, shifted), tolerance))
        free = next((head for head in fits if head not in taken), None)
        if free is None:
            return False
        taken.add(free)
    return True


def _centered(x: np.ndarray, shifted: bool) -> np.ndarray:
    return x - x.mean(-1, keepdims=True) if shifted else x


def _scaled(ours: np.ndarray, actual: np.ndarray, scaled: bool) -> np.ndarray:
    power = float(ours @ ours)
    return ours * (float(ours @ actual) / power) if scaled and power else ours


def _is_near(actual: np.ndarray, fitted: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(actual - fitted).max(initial=0.0) <= tolerance * np.abs(actual).max(initial=0.0))
