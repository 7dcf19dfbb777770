"""Edits that scale, shift, limit or cap a result, with numbers fitted to a value of the port."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance import work
from transparity_conformance.against.edits.edit import VIEWS, At, Context, Edit, Path, edit_at, result_of, short
from transparity_conformance.against.edits.numbers import number_arguments, number_edit, with_number
from transparity_conformance.listening.program import Change, Values
from transparity_conformance.matching.values import fingerprint, numbers_of
from transparity_conformance.oracle.budgets import RULES, epsilon


def scales(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits `a * result + b`; a and b are fitted so that the result equals an unmatched value of the port."""
    ours = _fingerprint_of(context.values, at.step.output)
    if ours is None:
        return
    for theirs in [*context.wanted, *_multiples(ours, context.prints)]:
        if ours.size != theirs.size or not (_is_plain(ours) and _is_plain(theirs)):
            continue
        factor = float(np.linalg.norm(theirs - theirs.mean()) / np.linalg.norm(ours - ours.mean()))
        for a in (factor, -factor):
            ordered = np.sort(a * ours)
            b = float((theirs - ordered).mean())
            if not (says := _scale_in_words(a, b, float(np.abs(theirs).max()), result_of(at.step))):
                continue
            change = lambda x, a=a, b=b: x * a + b
            yield edit_at((), "scale", says, change, 4)


def _multiples(ours: np.ndarray, prints: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    for theirs in prints if np.isfinite(ours).all() else ():
        if theirs.size == ours.size:
            work.count(ours.size)
            factor = float(ours @ theirs / (ours @ ours)) if ours.any() else 0.0
            allowed = RULES["float32"].budget(0, epsilon("float32"), float(np.abs(theirs).max()))
            if factor > 0 and bool((np.abs(factor * ours - theirs) <= allowed).all()):
                yield theirs


REAL = frozenset(["pow", "mul", "div", "add", "sub", "rsub"])
"""Operations whose integer argument, such as an exponent, may become a fraction."""


def other_numbers(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that pass another number to a step, fitted so that the result equals a value of the port."""
    value = context.values.get(at.step.output)
    if value is None or short(at.step) in VIEWS or not value.is_floating_point():
        return
    for path, old in number_arguments(at):
        if isinstance(old, bool) or old == 0 or not (isinstance(old, float) or short(at.step) in REAL):
            continue
        for theirs in context.wanted if _is_plain(numbers_of(value)) else ():
            if theirs.size == value.numel() and _is_plain(theirs):
                for number in _solved(at, context.values, path, old, float(np.abs(theirs).mean())):
                    yield number_edit(at, path, old, math.copysign(number, old), rank=1)


def _solved(at: At, values: Values, path: Path, old: float, wanted: float) -> Iterator[float]:
    """Yield positive arguments, rounded if possible, for which the mean absolute result of a step is `wanted`."""

    def mean(number: float) -> float:
        made = numbers_of(with_number(at, path, math.copysign(number, old))(values))
        work.count(made.size)
        with np.errstate(all="ignore"):
            return float(np.abs(made).mean())

    def is_on(side: bool, number: float) -> bool:
        return (mean(number) < wanted) == side

    grid = [abs(old) * 2.0**power for power in range(-24, 25, 4)]
    with contextlib.suppress(Exception):  # any operation may refuse another number
        below = [mean(number) < wanted for number in grid]
        for (low, is_below), (high, is_next_below) in itertools.pairwise(zip(grid, below, strict=True)):
            if is_below != is_next_below:
                found = _bisected(functools.partial(is_on, is_below), low, high)
                allowed = RULES["float32"].budget(0, epsilon("float32"), wanted)
                yield next((number for number in _shortened(found) if abs(mean(number) - wanted) <= allowed), found)


def limits(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that clip a result, or change a step's limits, to the range of an unmatched value of the port."""
    is_limited = short(at.step) in ("clamp", "clamp_min", "clamp_max", "clip")
    ours = _fingerprint_of(context.values, at.step.inputs[0] if is_limited else at.step.output)
    if ours is None:
        return
    for theirs in context.wanted:
        if ours.size == theirs.size and _is_plain(theirs) and (ends := _cut_ends(ours, theirs)) != (None, None):
            where = f"the operand of `{short(at.step)}` in `{at.line}`" if is_limited else result_of(at.step)
            words = [f"at {end} {x:.6g}" for end, x in zip(("least", "most"), ends, strict=True) if x is not None]
            change = functools.partial(_limited, low=ends[0], high=ends[1], again=is_limited)
            yield Edit("limits", f"limits {where} to {' and '.join(words)}", change, rank=3)


def _cut_ends(ours: np.ndarray, theirs: np.ndarray) -> tuple[float | None, float | None]:
    """Return the limits to which the port clips sorted elements. An extreme that occurs twice is a limit."""
    low = float(theirs[0]) if ours[0] < theirs[0] == theirs[1] else None
    return low, float(theirs[-1]) if ours[-1] > theirs[-1] == theirs[-2] else None


def _limited(at: At, low: float | None, high: float | None, again: bool) -> Change:
    limit = lambda x: x.clamp(low, high)
    return at.applying(limit, at.step.inputs[0]) if again else at.changing((), limit)


def softcaps(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that apply c · tanh(x / c) to a result; c is fitted to a value of the port."""
    ours = _fingerprint_of(context.values, at.step.output)
    if ours is None or not _is_plain(ours):
        return
    steps, readers = at.program.steps, at.program.readers_of
    if any(short(steps[later]) == "tanh" for reader in readers(at.step.number) for later in readers(reader)):
        return  # the reference has a softcap, too; only its numbers may differ
    fitted = (_fitted_cap(ours, theirs) for theirs in context.prints)
    for cap in dict.fromkeys(each for each in fitted if each is not None):
        change = lambda x, cap=cap: cap * (x / cap).tanh()
        says = f"applies {cap:.6g} · tanh(x / {cap:.6g}) to {result_of(at.step)}"
        yield edit_at((), "softcap", says, change, 3)


def _fitted_cap(ours: np.ndarray, theirs: np.ndarray) -> float | None:
    """Solve c · tanh(ours / c) = theirs for c, where both arrays are sorted."""
    if ours.size != theirs.size:
        return None
    largest, capped = (max(-float(each[0]), float(each[-1])) for each in (ours, theirs))
    if not 0 < capped < largest:
        return None
    cap = _bisected(lambda c: c * math.tanh(largest / c) < capped, capped, capped * 2.0**20)
    allowed = RULES["float32"].budget(0, epsilon("float32"), largest)

    def apart(made: np.ndarray, every: int = 1) -> float:
        return float(np.abs(made - theirs[::every]).max())

    some = ours.size // 16 + 1
    # The quick test rejects most pairs. If another cap fits, its largest element differs by at most `allowed` from the
    # largest element with `cap`. Smaller elements depend less on the cap, so `cap` is at most 2 · `allowed` off.
    if apart(cap * np.tanh(ours[::some] / cap), some) > 2 * allowed:
        return None
    work.count(ours.size)

    def fits(c: float) -> bool:
        return apart(c * np.tanh(ours / c)) <= allowed

    # If a cap that is 10 % larger fits as well, the difference may be rounding. If x / √(1 + x² · s) fits as well, the
    # port may add another epsilon under a root: for small x, both functions equal x minus a multiple of x³.
    scale = capped**-2 - largest**-2
    is_epsilon = apart(ours / np.sqrt(1 + scale * ours**2)) <= allowed
    return None if fits(1.1 * cap) or is_epsilon else next(filter(fits, _shortened(cap)), None)


def _fingerprint_of(values: Values, index: int) -> np.ndarray | None:
    value = values.get(index)
    return None if value is None or not value.is_floating_point() else fingerprint(value)


def _shortened(number: float) -> list[float]:
    return [*(float(f"{number:.{digits}g}") for digits in (1, 2, 3)), number]


def _bisected(is_low: Callable[[float], bool], low: float, high: float) -> float:
    while low < (middle := math.sqrt(low * high)) < high:
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low


def _is_plain(numbers: np.ndarray) -> bool:
    return bool((np.abs(numbers) < -EXACT_MASK_BELOW).all())


def _scale_in_words(a: float, b: float, size: float, where: str) -> str:
    ulp = epsilon("float32")
    times = f"multiplies {where} by {a:.6g}" if abs(a - 1) > RULES["float32"].budget(0, ulp, 1) else ""
    plus = f"adds {b:.6g} to {where}" if abs(b) > RULES["float32"].budget(0, ulp, size) else ""
    return " and ".join(filter(None, [times, plus]))
