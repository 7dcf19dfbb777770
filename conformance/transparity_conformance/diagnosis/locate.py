"""Find the wrong segments of a port, and the taps at which the faults may act. A right port may compute equivalent
forms of activations: for example, it may scale the query instead of the scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np

from transparity_conformance.catalogue.sites import ENDS, is_norm
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results, real_positions
from transparity_conformance.diagnosis.thresholds import EQUIVALENT_ULPS
from transparity_conformance.diagnosis.walk import segment_budgets, walk
from transparity_conformance.oracle.budgets import NEIGHBOURS_OF_DRAWN, epsilon
from transparity_conformance.oracle.undetermined import judged_gap, undetermined_positions
from transparity_conformance.report.comparison import share

INTERNAL = (
    *("query_latent", "key_value_latent"),
    *("query", "query_norm", "query_rotated", "key", "key_norm", "key_rotated", "value"),
    *("scores", "weights", "context", "hidden"),
)
"""Activations inside a sublayer. A right port may compute the sublayer without them."""

INSIDE = ("scores", "weights", "context")
"""The last taps of attention, in order."""


def is_internal(tap: str) -> bool:
    return tap.rpartition(".")[2] in INTERNAL


def faulty_segments(results: Results) -> tuple[list[str], list[str]]:
    """Return the wrong taps, and the taps that differ only in form. A tap differs only in form if it is inside a
    sublayer with a right output. For example, a port may fold a norm's gain and bias into the next weights."""
    faulty: dict[str, None] = {}
    equivalent: dict[str, None] = {}
    order = list(dict.fromkeys(tap for result in results.values() for tap in result.order))
    suspects = {tap for result in results.values() for tap in result.wrong if is_internal(tap)}
    healed = _healed(results, suspects) if suspects else set()
    inside = {tap for tap in suspects if tap.rpartition(".")[2] in INSIDE}
    if inside and any(tap not in inside and (key, tap) not in healed for key, tap in _wrong(results)):
        healed |= _healed(results, inside, INSIDE)
    norms = {tap for result in results.values() for tap in result.wrong if is_norm(result.probe.config, tap)}
    if norms:
        healed |= _healed(results, suspects | norms)
    for key, tap in _wrong(results):
        (equivalent if (key, tap) in healed else faulty)[tap] = None
    only_equivalent = (tap for tap in equivalent if tap not in faulty)
    return sorted(faulty, key=order.index), sorted(only_equivalent, key=order.index)


def _wrong(results: Results) -> list[tuple[str, str]]:
    return [(key, tap) for key, result in results.items() for tap in result.wrong]


def _healed(results: Results, suspects: set[str], without: Collection[str] = INTERNAL) -> set[tuple[str, str]]:
    """Return (probe, tap) of each suspect that differs only in form. To decide, run the reference with the port's
    values at all taps except the suspects and the taps in `without`."""
    pairs: dict[tuple[str, int], list[Pair]] = {}
    for result in results.values():
        ours = walk(result.probe, _outer(result, suspects, without))
        for tap in suspects & set(result.recorded):
            is_nan = np.isnan(result.recorded[tap]).reshape(len(result.recorded[tap]), -1).any(1)
            rows = is_nan | ~_depends_on_convention(result, tap)  # no convention allows NaN
            pair = _comparable(result, tap, ours)[rows], ours[tap][rows]
            pairs.setdefault((tap, id(result.probe.parameters)), []).append(pair)
    tolerance = EQUIVALENT_ULPS * max(epsilon(result.dtype) for result in results.values())
    accepted = {(tap, model) for (tap, model), some in pairs.items() if is_equivalent(tap, some, tolerance)}
    healed: set[tuple[str, str]] = set()
    for key, result in results.items():
        model = id(result.probe.parameters)
        if taps := {tap for tap in suspects & set(result.recorded) if (tap, model) in accepted}:
            outer = _outer(result, suspects, without)
            right = _right(result, outer)
            healed |= {(key, tap) for tap in taps if _ends_right(result, tap, outer, right)}
    return healed


def _outer(result: ProbeResult, suspects: set[str], without: Collection[str]) -> Mapping[str, np.ndarray]:
    return result.without({tap for tap in result.recorded if tap.rpartition(".")[2] in without} | suspects).recorded


def _right(result: ProbeResult, outer: Mapping[str, np.ndarray]) -> dict[str, bool]:
    neighbours = 1 if result.probe.is_large else NEIGHBOURS_OF_DRAWN  # one neighbour is too few near ties
    budgets = segment_budgets(result.probe, outer, result.dtype, neighbours=neighbours)
    return {tap: error <= max(budgets[tap], result.budgets[tap]) for tap, error in result.gaps_from(outer).items()}


def _ends_right(result: ProbeResult, tap: str, outer: Mapping[str, np.ndarray], right: Mapping[str, bool]) -> bool:
    ends = right[tap] or any(right.get(end) for end in _ends(tap, outer, result))
    return ends if is_internal(tap) else all(right[name] for name in outer)


def _depends_on_convention(result: ProbeResult, tap: str) -> np.ndarray:
    """Return a mask of rows that depend on a fully masked query, or on a near-tie between experts."""
    rows = len(next(iter(result.probe.inputs.values())))
    free = undetermined_positions(result.probe, result.dtype).get(tap)
    return np.zeros(rows, bool) if free is None else np.any(free.reshape(rows, -1), axis=1)


def _ends(tap: str, outer: Mapping[str, np.ndarray], result: ProbeResult) -> list[str]:
    """Return the taps that must be right if `tap` differs only in form: later taps of the attention, and the next tap
    in `outer`."""
    attention, _, last = tap.rpartition(".")
    through = {"hidden": (), "value": INSIDE[2:], "scores": INSIDE[1:], "weights": INSIDE[2:], "context": ()}
    behind = result.order[result.order.index(tap) + 1 :]
    end = next((name for name in behind if name in outer), None)
    return [*(f"{attention}.{name}" for name in through.get(last, INSIDE)), *([end] if end else [])]


def _comparable(result: ProbeResult, tap: str, ours: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the port's value at `tap`. If a port computes ALiBi from the key's position, each row of scores has an
    additional constant; subtract this constant."""
    recorded = result.recorded[tap]
    if not tap.endswith(".scores") or result.probe.config.positions != "alibi":
        return recorded
    visible = ours[tap.replace(".scores", ".weights")] > 0
    count = np.maximum(visible.sum(-1, keepdims=True), 1)
    shift = ((recorded - ours[tap]) * visible).sum(-1, keepdims=True) / count
    return np.where(visible, recorded, ours[tap] + shift)


def wrong_at_tokens(results: Results, faulty: list[str]) -> list[str]:
    """Return taps that have a wrong shape, or that differ outside of padding."""
    found: dict[str, None] = {}
    for result in results.values():
        found |= dict.fromkeys(result.misshapen)
        for tap in faulty:
            if tap in result.recorded and result.share(tap) > 1 and (is_internal(tap) or _differs(result, tap)):
                found[tap] = None
    return sorted(found, key=lambda tap: faulty.index(tap) if tap in faulty else -1)


def _differs(result: ProbeResult, tap: str) -> bool:
    oracle, tokens = result.probe.oracle, real_positions(result.probe, tap)[..., None]
    error = judged_gap(result.probe, tap, result.recorded[tap] * tokens, oracle.expected[tap] * tokens, result.dtype)
    return share(error, oracle.budget(tap, result.dtype)) > 1


def candidate_sites(result: ProbeResult, tap: str) -> list[str]:
    """Return the taps at which a fault may act that makes `tap` wrong, in order of execution; `tap` is the last."""
    recorded, before = result.recorded, result.order[: result.order.index(tap)]
    layer = ".".join(tap.split(".")[:3])
    # Include all unrecorded taps of the layer, because the recorded taps between them may be on another path.
    sites = [name for name in reversed(before) if name not in recorded and name.startswith(f"{layer}.")]
    for name in reversed(before):
        if name in recorded:
            break
        sites.append(name)
    if not tap.startswith("encoder") and "encoder.output" in before and "encoder.output" not in recorded:
        sites += [name for name in reversed(before) if name.startswith("encoder") and name not in recorded]
    if is_norm(result.probe.config, tap) or tap.endswith(".output"):
        scope = tap.rsplit(".", 1)[0]
        end = ENDS.get(result.probe.config.norm_position, ".output")
        sites += [
            name
            for name in before
            if name.startswith(f"{scope}.") and name.endswith((f"attention{end}", f"forward{end}"))
        ]
        sites += [name for name in before if name.endswith(f"feed_forward{end}")][-1:]
    return [*dict.fromkeys(reversed(sites)), tap]


Pair = tuple[np.ndarray, np.ndarray]


def is_equivalent(tap: str, pairs: Sequence[Pair], tolerance: float) -> bool:
    if not pairs or not all(actual.shape == ours.shape for actual, ours in pairs):
        return False
    if not all(np.isfinite(values).all() for pair in pairs for values in pair):  # our values may contain the port's NaN
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
    return _flat(x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1) if x.ndim == 4 else x)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def _is_affine(actual: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Return whether actual = ours · A + b for some A and b, with enough positions to decide."""
    known = np.concatenate([ours, np.ones((len(ours), 1))], axis=1)
    if len(known) <= known.shape[1] + 1:
        return False
    fitted = known @ np.linalg.lstsq(known, actual, rcond=None)[0]
    return _is_near(actual, fitted, tolerance)


def _columns_match(actual: np.ndarray, ours: np.ndarray, tolerance: float) -> bool:
    """Return whether each hidden unit of the port is a positive multiple of a hidden unit of the reference."""
    length = np.linalg.norm(ours, axis=0)
    likeness = (ours / np.where(length > 0, length, 1)).T @ actual
    best, scale = likeness.argmax(axis=0), likeness.max(axis=0)
    unit = ours[:, best] / np.where(length[best] > 0, length[best], 1)
    return bool((scale > 0).any()) and _is_near(actual, unit * scale, tolerance)


def _heads_match(pairs: Sequence[Pair], tolerance: float, *, shifted: bool) -> bool:
    """Return whether heads are equal in some order. With `shifted`, a head may have a factor, and each row may have an
    additional constant."""

    def head_of(x: np.ndarray, head: int) -> np.ndarray:
        return (x - x.mean(-1, keepdims=True) if shifted else x)[:, head].ravel()

    def scaled(ours: np.ndarray, actual: np.ndarray) -> np.ndarray:
        power = float(ours @ ours)
        return ours * (float(ours @ actual) / power) if shifted and power else ours

    heads = [_joined(pairs, partial(head_of, head=head)) for head in range(pairs[0][0].shape[1])]
    taken: set[int] = set()
    for actual, _ in heads:
        fits = (i for i, (_, ours) in enumerate(heads) if _is_near(actual, scaled(ours, actual), tolerance))
        free = next((head for head in fits if head not in taken), None)
        if free is None:
            return False
        taken.add(free)
    return True


def _is_near(actual: np.ndarray, fitted: np.ndarray, tolerance: float) -> bool:
    return bool(np.abs(actual - fitted).max(initial=0.0) <= tolerance * np.abs(actual).max(initial=0.0))
