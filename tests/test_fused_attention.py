"""The reference's fast path: attention in blocks of queries, without keys that none of them sees, is attention."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import transparity_numpy.attention
from transparity.config import EXACT_MASK_BELOW
from transparity.taps import recording
from transparity_numpy.attention import attention

HEADS, HEAD_DIM = 2, 3


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    """(batch or 1, 1, queries or 1, keys), causal now and then; rows that see nothing, too."""
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
    query = query + 1e-20j * random.normal(size=query.shape) if moves else query
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transparity_numpy.attention, "BLOCK", block)
        fast = attention(query, key, value, mask, scale=0.5, hidden=hidden)
        explicit = attention(query, key, value, mask, scale=0.5, hidden=hidden, tap=recording({}))
    assert fast.dtype == explicit.dtype
    np.testing.assert_allclose(fast.real, explicit.real, rtol=0, atol=1e-14)
    np.testing.assert_allclose(fast.imag, explicit.imag, rtol=0, atol=1e-33)


def test_what_is_hidden_by_little_is_not_left_out() -> None:
    """A hidden score of −1e-20, a document's own mistake, weighs as much as a score of zero."""
    random = np.random.default_rng(1)
    query, key, value = (random.normal(size=(1, HEADS, 4, HEAD_DIM)) for _ in range(3))
    shown = np.tri(4, dtype=bool)[None, None]
    fast = attention(query, key, value, shown, scale=0.5, hidden=-1e-20)
    explicit = attention(query, key, value, shown, scale=0.5, hidden=-1e-20, tap=recording({}))
    np.testing.assert_array_equal(fast, explicit)
    assert not np.allclose(fast, attention(query, key, value, shown, scale=0.5, hidden=-1e20))
