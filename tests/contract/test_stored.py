"""Arrays that are stored outside of memory have the values that were written."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from tests.looping import for_each

from transparity.limits.stored import Lazy, OnDisk, changed, chosen


@for_each("dtype", ["float64", "float32", "bool", "int64"])
@for_each("shape", [(3, 5), (1,), (), (0, 4)])
def test_what_is_read_is_what_was_put_there(dtype: str, shape: tuple[int, ...]) -> None:
    arrays, value = OnDisk(), np.random.default_rng(0).normal(size=shape).astype(dtype)
    arrays["first"], arrays["turned"] = value, value.T
    for name, expected in (("first", value), ("turned", value.T)):
        np.testing.assert_array_equal(arrays[name], expected)
        assert arrays[name].dtype == expected.dtype
    assert list(arrays) == ["first", "turned"]


def test_one_number_in_a_shape_takes_no_room() -> None:
    arrays = OnDisk()
    arrays["huge"] = np.broadcast_to(np.nan, (2**20, 2**20))
    assert arrays["huge"].shape == (2**20, 2**20)


def test_a_copy_has_what_was_there_and_neither_sees_what_the_other_adds() -> None:
    arrays = OnDisk()
    arrays["both"] = np.arange(3.0)
    other = copy.copy(arrays)
    arrays["one"], other["other"], other["both"] = np.zeros(2), np.ones(2), np.ones(2)
    assert (sorted(arrays), sorted(other)) == (["both", "one"], ["both", "other"])
    np.testing.assert_array_equal(arrays["both"], np.arange(3.0))
    del arrays
    np.testing.assert_array_equal(other["both"], np.ones(2))


def test_arrays_that_are_made_as_they_are_read_stay_so() -> None:
    made: list[str] = []

    def make(name: str) -> np.ndarray:
        made.append(name)
        return np.array([float(len(made))])

    some = changed(chosen(Lazy(["a", "b"], make), ["b"]), lambda value: value + 1)
    assert isinstance(some, Lazy) and list(some) == ["b"] and not made
    assert some["b"] == 2.0 and made == ["b"]
    with pytest.raises(KeyError):
        some["a"]
    assert changed(chosen({"a": np.ones(1), "b": np.ones(1)}, ["a"]), lambda value: value + 1) == {"a": np.array([2.0])}
