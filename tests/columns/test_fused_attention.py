"""The reference's fused attention, in blocks of queries and without keys that are fully masked, equals attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import transparity_numpy.arithmetic.fused
from transparity.config import EXACT_MASK_BELOW
from transparity.taps import Tap, recording
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.report.comparison import difference
from transparity_numpy.mixers.attention import attention

HEADS, HEAD_DIM = 2, 3
STEP = 1e-20
"""The imaginary step of a derivative; its square is smaller than the rounding of any number it is added to."""


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """Draw masks (batch or 1, 1, queries or 1, keys); some are causal, and some have rows without visible keys."""
    batch, queries, keys = (draw(st.integers(1, 5)) for _ in range(3))
    shape = (draw(st.sampled_from([1, batch])), 1, draw(st.sampled_from([1, queries])), keys)
    mask = draw(arrays(bool, shape))
    return mask & np.tri(shape[2], keys, dtype=bool) if draw(st.booleans()) else mask


@settings(max_examples=200, deadline=None, derandomize=True)
@given(masks(), st.integers(1, 3), st.sampled_from([2 * EXACT_MASK_BELOW, -np.inf, -1e20]), st.booleans())
def test_a_block_at_a_time_it_is_the_same(mask: np.ndarray, block: int, hidden: float, moves: bool) -> None:
    random, keys = np.random.default_rng(0), mask.shape[-1]
    query, key, value = (
        random.normal(size=(len(mask), HEADS, length, HEAD_DIM))
        for length in (5 if mask.shape[2] == 1 else mask.shape[2], keys, keys)
    )
    toward = random.normal(size=query.shape) if moves else np.zeros(query.shape)
    arrays = {"query": query, "key": key, "value": value, "toward": toward}
    oracle = explicit_oracle(arrays, mask, hidden)
    moved = query + STEP * 1j * toward if moves else query
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transparity_numpy.arithmetic.fused, "BLOCK", block)
        fast = attention(moved, key, value, mask, scale=0.5, masked_score=hidden)
    assert fast.dtype == (np.complex128 if moves else np.float64)
    assert difference(fast.real, oracle.expected["context"]) <= oracle.budget("context", "float64")
    assert difference(fast.imag / STEP, oracle.expected["derivative"]) <= oracle.budget("derivative", "float64")


def explicit_oracle(arrays: Arrays, mask: np.ndarray, hidden: float) -> Oracle:
    """Return the oracle of attention with all taps: its `context`, and the `derivative` in the direction `toward`."""

    def run(given: Arrays, tap: Tap) -> None:
        query = given["query"] + STEP * 1j * given["toward"]
        result = attention(query, given["key"], given["value"], mask, scale=0.5, masked_score=hidden, tap=recording({}))
        tap("context", result.real)
        tap("derivative", result.imag / STEP)

    return Oracle(run, arrays)


def test_what_is_hidden_by_little_is_not_left_out() -> None:
    """Check a mask value of −1e-20, which one document prints by mistake; masked keys keep their full weight."""
    random = np.random.default_rng(1)
    query, key, value = (random.normal(size=(1, HEADS, 4, HEAD_DIM)) for _ in range(3))
    shown = np.tri(4, dtype=bool)[None, None]
    fast = attention(query, key, value, shown, scale=0.5, masked_score=-1e-20)
    explicit = attention(query, key, value, shown, scale=0.5, masked_score=-1e-20, tap=recording({}))
    np.testing.assert_array_equal(fast, explicit)
    # under a causal mask, the first query sees only the first key
    hiding = attention(query, key, value, shown, scale=0.5, masked_score=-1e20)
    first = value[:, :, 0].reshape(1, HEADS * HEAD_DIM)
    np.testing.assert_array_equal(hiding[:, 0], first)
    assert (fast[:, 0] != first).all()
