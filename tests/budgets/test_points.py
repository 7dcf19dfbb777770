import math
import socket
import time

import numpy as np
import pytest

from transparity_conformance.oracle.oracle import Oracle
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import BLOCK, difference, gap, largest
from transparity_conformance.running.process.wire import HEADER, encoded, receive_answer, send_answer


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_error_is_tolerated_after_the_first_points_if_it_is_after_all(dtype: str) -> None:
    of_all = probes("translation")["mixed"].oracle
    budget = of_all.budget("logits", dtype)
    few = Oracle(of_all.run, of_all.arrays, neighbours=of_all.neighbours)
    assert few.budget_for(math.inf, "logits", dtype) == budget
    assert few.budget_for(np.nextafter(budget, 1), "logits", dtype) == budget
    assert 0 < few.budget_for(0.0, "logits", dtype) <= budget


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 3 * BLOCK - 1])
def test_a_single_wrong_number_is_seen_in_every_part(place: int) -> None:
    right = np.random.default_rng(0).normal(size=(3, BLOCK))
    wrong = right.astype(np.float32).astype(np.float64)
    assert gap(wrong, right) == difference(wrong, right) == float(np.abs(wrong - right).max())
    assert largest(right) == np.abs(right).max()
    number = right.ravel()[place]
    for value, error in ((number - 9, abs(number - 9 - number)), (np.nan, np.inf), (-np.inf, np.inf)):
        wrong.flat[place] = value
        assert gap(wrong, right) == difference(wrong, right) == error
        assert gap(wrong.T, right.T) == gap(wrong, right)


@pytest.mark.parametrize("extra", [-8, 0, 8])
def test_an_answer_has_the_bytes_that_its_header_announces(extra: int) -> None:
    text, arrays = encoded({"a": np.arange(6.0).reshape(2, 3).T, "b": np.float32(1.5)}, lambda value: 0, 100)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if extra:
            theirs.sendall(HEADER.pack(len(text), 52 + extra) + text + bytes(60))
            with pytest.raises(ValueError, match="bytes"):
                receive_answer(ours, time.monotonic() + 9, 100, lambda: True)
            return
        send_answer(theirs, text, arrays)
        answer = receive_answer(ours, time.monotonic() + 9, 100, lambda: True)
    np.testing.assert_array_equal(answer["a"], np.arange(6.0).reshape(2, 3).T)
    assert answer["b"].dtype == np.float32
    assert answer["b"] == 1.5
