"""Test how the operations of two calls are paired: by their longest common subsequence."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from transparity_conformance.matching.graph import common

words = st.text(alphabet="abc", max_size=12)


def length_by_a_table(one: str, other: str) -> int:
    """Compute the length of the longest common subsequence by the textbook's recurrence."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            table[i + 1][j + 1] = table[i][j] + 1 if left == right else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(words, words)
def test_it_is_common_in_order_and_as_long_as_can_be(one: str, other: str) -> None:
    pairs = common(one, other)
    assert all(one[i] == other[j] for i, j in pairs)
    assert all(i < k and j < n for (i, j), (k, n) in itertools.pairwise(pairs))
    assert len(pairs) == length_by_a_table(one, other)


def test_what_is_repeated_more_often_is_paired_from_its_end() -> None:
    assert common("xaby", "xababy") == [(0, 0), (1, 3), (2, 4), (3, 5)]
