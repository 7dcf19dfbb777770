"""Other forms of the same: a port may scale the query instead of the scores, number its heads otherwise, drop a key's
bias that softmax takes away. What it then shows inside a sublayer is not ours, and yet it is right.

A form is accepted only if one map, the same for every row and position, leads from our numbers to the port's: a number
that is simply wrong is on no such map.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]
"""What the port shows, and what we have there."""


def is_another_form(tap: str, pairs: Sequence[Pair], tolerance: float) -> bool:
    """Whether one map leads from ours to the port's, to within `tolerance` of the largest number."""
    if not pairs or not all(actual.shape == ours.shape for actual, ours in pairs):
        return False
    if not all(np.isfinite(values).all() for pair in pairs for values in pair):  # ours follow from what the port said
        return False
    last = tap.rpartition(".")[2]
    if last == "hidden":
        return _columns_match([(_flat(actual), _flat(ours)) for actual, ours in pairs], tolerance)
    if last in ("scores", "weights"):
        return _heads_match(pairs, tolerance, shifted=last == "scores")
    return _affine([(_merged(actual), _merged(ours)) for actual, ours in pairs], tolerance)


def _merged(x: np.ndarray) -> np.ndarray:
    """(batch, heads, length, head_dim) or (batch, length, features) as (positions, features)."""
    return _flat(x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) if x.ndim == 4 else x)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _affine(pairs: Sequence[Pair], tolerance: float) -> bool:
    """actual = ours · A + b for one A and b; more positions than features, or anything would do."""
    actual, ours = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    known = np.concatenate([ours, np.ones((len(ours), 1))], axis=1)
    if len(known) <= known.shape[1] + 1:
        return False
    fitted = known @ np.linalg.lstsq(known, actual, rcond=None)[0]
    return _near(actual, fitted, tolerance)


def _columns_match(pairs: Sequence[Pair], tolerance: float) -> bool:
    """Every hidden unit of the port's is one of ours, times a number."""
    actual, ours = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    length = np.linalg.norm(ours, axis=0)
    likeness = (ours / np.where(length > 0, length, 1)).T @ actual
    best = likeness.argmax(axis=0)
    unit = ours[:, best] / np.where(length[best] > 0, length[best], 1)
    return _near(actual, unit * likeness.max(axis=0), tolerance) and len(set(best[likeness.max(axis=0) > 0])) > 0


def _heads_match(pairs: Sequence[Pair], tolerance: float, *, shifted: bool) -> bool:
    """Every head of the port's is one of ours; scores may be scaled, and shifted by a number of each row's own."""
    by_head = [
        tuple(np.concatenate([_centered(pair[side], shifted)[:, head].ravel() for pair in pairs]) for side in (0, 1))
        for head in range(pairs[0][0].shape[1])
    ]
    taken = set()
    for actual, _ in by_head:
        fits = [
            head for head, (_, ours) in enumerate(by_head) if _near(actual, _scaled(ours, actual, shifted), tolerance)
        ]
        free = [head for head in fits if head not in taken]
        if not free:
            return False
        taken.add(free[0])
    return True


def _centered(x: np.ndarray, shifted: bool) -> np.ndarray:
    return x - x.mean(-1, keepdims=True) if shifted else x


def _scaled(ours: np.ndarray, actual: np.ndarray, scaled: bool) -> np.ndarray:
    power = float(ours @ ours)
    return ours * (float(ours @ actual) / power) if scaled and power else ours


def _near(actual: np.ndarray, fitted: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(actual - fitted).max(initial=0.0) <= tolerance * max(np.abs(actual).max(initial=0.0), 1e-30))
