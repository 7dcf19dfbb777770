import dataclasses
import functools
import math
import operator
import socket
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.helpers import tiny

from meta.pool.port import port_with
from transparity.training import Training
from transparity_conformance.checking.stages.reach import compare
from transparity_conformance.oracle import variants as recurrence
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import training_oracle
from transparity_conformance.oracle.oracle import Oracle
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters, probes
from transparity_conformance.oracle.reach.models import LogitsOracle, ReachProbe, reach_of_preset
from transparity_conformance.oracle.variants import product_in_sequence, softmax_in_sequence, weight_so_far
from transparity_conformance.report.comparison import BLOCK, difference, gap, largest, share
from transparity_conformance.running.process.wire import HEADER, encoded, receive_answer, send_answer
from transparity_flax.port import build
from transparity_numpy.transformer import transformer

Arrays = dict[str, np.ndarray]


ONLINE = {1: port_with("right-online-one-key"), 4: port_with("right-online")}
"""Correct ports, by the number of keys that they process at a time."""


def answer(build: Callable[..., Any], probe: Probe) -> Arrays:
    with np.errstate(all="ignore"):
        return dict(build(probe.config, probe.parameters)(**probe.inputs))


@pytest.fixture(scope="module")
def long_call() -> ReachProbe:
    """Return a call with 513 tokens of the preset `walkthrough`, which gives masked keys the weight of the score 0."""
    long = next(model for model in reach_of_preset("walkthrough") if model.name == "long")
    return long.probe(1, (513, 513))


@pytest.mark.parametrize("keys", ONLINE)
def test_an_online_softmax_agrees_at_a_length_beyond_the_probes(long_call: ReachProbe, keys: int) -> None:
    assert not compare(long_call, np.asarray(answer(ONLINE[keys], long_call)["logits"]), "float32").is_wrong


def test_a_long_call_that_forgets_a_key_is_wrong(long_call: ReachProbe) -> None:
    changed = dict(long_call.inputs)
    changed["source"] = changed["source"].copy()
    changed["source"][0, 400] = (changed["source"][0, 400] + 1) % long_call.config.source_vocab_size
    other = dataclasses.replace(long_call, inputs=changed)
    assert compare(long_call, np.asarray(answer(ONLINE[1], other)["logits"]), "float32").is_wrong


def test_sums_in_sequence_are_those_of_a_loop() -> None:
    scores = np.log(np.full(3000, 0.1, np.float32))
    scores[-1] = 0  # the largest score
    exponentials = np.exp(scores)
    total = functools.reduce(operator.add, exponentials)
    assert total != exponentials.sum()
    assert softmax_in_sequence(scores)[-1] == 1 / total
    assert product_in_sequence(np.ones((1, 3000), np.float32), exponentials[:, None]).item() == total


RECURRENT = next(config for config in CASES.values() if config.is_recurrent)
RULE = "transparity_numpy.mixers.gated_delta.gated_delta_rule"


@pytest.fixture(scope="module", params=range(3))
def probe(request: pytest.FixtureRequest) -> Probe:
    config, length = RECURRENT, RECURRENT.max_length
    parameters = probe_parameters(config, 100 + request.param)
    return Probe("recurrent", "mixed", "", config, parameters, mixed_inputs(config, 3, length, length))


def largest_share(probe: Probe, rule: Any) -> float:
    """Run the NumPy column with the recurrence `rule`. Return the logits' error as a share of the budget, the larger
    share of two oracles."""
    oracles = probe.oracle, LogitsOracle(probe.config, probe.parameters, probe.inputs)
    inputs: dict[str, Any] = dict(probe.inputs)
    with mock.patch(RULE, rule):
        found = np.asarray(transformer(probe.config, probe.parameters, **inputs))
    return max(gap(found, each.expected["logits"]) / each.budget("logits", "float32") for each in oracles)


def test_a_port_by_chunks_is_right(probe: Probe) -> None:
    assert largest_share(probe, recurrence.gated_delta_rule) <= 1


def test_a_port_by_chunks_that_forgets_a_decay_is_wrong(probe: Probe) -> None:
    def forgetful(query: Any, key: Any, value: Any, log_decay: Any, beta: Any, state: Any) -> Any:
        log_decay = log_decay.copy()
        log_decay[:, :, 3] = 0
        return recurrence.gated_delta_rule(query, key, value, log_decay, beta, state)

    assert largest_share(probe, forgetful) > 1


TINY = tiny(embed_dim=2)
ADAM = Training("adam", learning_rate=0.05, betas=(0.9, 0.999), eps=1e-5)
BATCH = {"tokens": np.array([[1, 2, 3]]), "targets": np.array([[2, 3, 4]])}


def test_a_correction_of_the_bias_in_float32_is_rounding() -> None:
    """Use Optax, which computes 1 − 0.999 in float32, with a relative error of 1.3e-5. Adam divides every update of the
    first step by √(1 − 0.999)."""
    parameters = probe_parameters(TINY, 6)
    oracle = training_oracle(TINY, parameters, [BATCH], ADAM)
    off = ADAM.learning_rate * abs(weight_so_far(0.999, 1) / 0.001 - 1) / 2
    assert oracle.noise("float32")["head.weight"] > 0.9 * off
    _, learned = build(TINY, parameters).train([BATCH], ADAM)
    for name, value in learned.items():
        assert share(difference(value, oracle.expected[name]), oracle.budget(name, "float32")) < 1, name


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
