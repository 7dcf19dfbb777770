"""Edits with numbers taken from the port: a factor, a term, and a rounding."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.against.edits.edit import VIEWS, At, Context, Edit, as_shaped, result_of, short
from transparity_conformance.listening.program import Change, Values
from transparity_conformance.matching.values import fingerprint
from transparity_conformance.oracle.budgets import RULES, epsilon

ROUNDED = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The largest error of rounding to each dtype, relative to the number."""


def roundings(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that round a result, if the port's numbers are the reference's numbers after rounding."""
    if at.value is None or not at.value.is_floating_point() or short(at.step) in VIEWS:
        return
    for dtype in ROUNDED:
        if any(rounded.size == at.value.numel() for rounded in at.flow.rounded.get(dtype, ())):
            says = f"rounds {result_of(at.step)} to {dtype}"
            yield Edit("rounding", says, functools.partial(_rounded, dtype=dtype), rank=4)


def _rounded(at: At, dtype: str) -> Change:
    import torch

    def changed(values: Values) -> Any:
        now = dict(values)
        at.step.run(now, None)
        exact = now[at.step.output]
        allowed = ROUNDED[dtype] * exact.abs() + RULES["float32"].budget(0, epsilon("float32"), exact.abs().max())
        for each in at.flow.rounded[dtype]:
            if each.size == exact.numel():
                theirs = torch.from_numpy(each)
                theirs = theirs.reshape(exact.shape) if theirs.ndim != exact.ndim else as_shaped(theirs, exact)
                if theirs.shape == exact.shape and bool(((theirs - exact).abs() <= allowed).all()):
                    return theirs.to(exact.dtype)
        raise ValueError("the port's rounding differs")

    return changed


def scales(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that scale and shift a result so that it equals a value of the port."""
    if at.value is None or not at.value.is_floating_point():
        return
    ours = fingerprint(at.value)
    for theirs in context.wanted:
        if ours is None or ours.size != theirs.size or not (_is_plain(ours) and _is_plain(theirs)):
            continue
        factor = float(np.linalg.norm(theirs - theirs.mean()) / np.linalg.norm(ours - ours.mean()))
        for a in (factor, -factor):
            ordered = np.sort(a * ours)
            b = float((theirs - ordered).mean())
            says = _in_words(a, b, float(np.abs(theirs).max()), result_of(at.step))
            yield Edit("scale", says, functools.partial(_scaled, a=a, b=b), rank=3)


def _is_plain(numbers: np.ndarray) -> bool:
    """Return whether the numbers contain no masked score."""
    return bool((np.abs(numbers) < -EXACT_MASK_BELOW).all())


def _scaled(at: At, a: float, b: float) -> Change:
    return at.with_result(lambda x: x * a + b)


def _in_words(a: float, b: float, size: float, where: str) -> str:
    ulp = epsilon("float32")
    times = f"multiplies {where} by {a:.6g}" if abs(a - 1) > RULES["float32"].budget(0, ulp, 1) else ""
    plus = f"adds {b:.6g} to {where}" if abs(b) > RULES["float32"].budget(0, ulp, size) else ""
    return " and ".join(filter(None, [times, plus])) or f"changes {where}"
