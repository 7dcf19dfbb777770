"""Attention may sum over keys one at a time, as an online softmax does; a wrong sum diverges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.independent.model import Model
from meta.independent.port import build_with
from meta.pool.port import port_with
from transparity.presets import preset
from transparity_conformance.checking.stages.reach import compare
from transparity_conformance.diagnosis.probe_result import compare_segments
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.models import ReachProbe, reach_of_preset
from transparity_conformance.oracle.variants import product_in_sequence, softmax_in_sequence

Arrays = dict[str, np.ndarray]


ONLINE = {1: port_with("right-online-one-key"), 4: port_with("right-online")}
"""Correct ports, by the number of keys that they process at a time."""


def answer(build: Callable[..., Any], probe: Probe) -> Arrays:
    with np.errstate(all="ignore"):
        return dict(build(probe.config, probe.parameters)(**probe.inputs))


@pytest.fixture(scope="module")
def long_call() -> ReachProbe:
    """Return a call with 513 tokens for the walkthrough, where a masked key has the same weight as a score of 0."""
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


@pytest.mark.long
def test_an_online_softmax_agrees_on_the_longest_probe() -> None:
    config = dataclasses.replace(preset("walkthrough").resized(), max_length=256)
    probe = Probe("walkthrough", "longest", "long", config, probe_parameters(config), mixed_inputs(config, 2, 256, 256))
    recorded = {"logits": np.asarray(answer(ONLINE[1], probe)["logits"])}
    assert not compare_segments(probe, recorded, "float32").wrong


@pytest.mark.long
def test_a_product_of_pytorch_with_equal_weights_agrees_on_the_longest_probe() -> None:
    """Check a row that sees no key: PyTorch's batched product adds its 256 padding keys one after another."""
    config = dataclasses.replace(CASES["t5"], max_length=256)
    probe = Probe("t5", "longest", "long", config, probe_parameters(config), mixed_inputs(config, 2, 256, 256))
    recorded = answer(build_with(base=Model, taps=True), probe)
    assert not compare_segments(probe, {name: np.asarray(value) for name, value in recorded.items()}, "float32").wrong


def one_by_one(numbers: np.ndarray) -> np.float32:
    total = np.float32(0)
    for number in numbers:
        total += number
    return total


def test_sums_in_sequence_are_those_of_a_loop() -> None:
    scores = np.log(np.full(3000, 0.1, np.float32))
    scores[-1] = 0  # the largest of them
    exponentials = np.exp(scores)
    total = one_by_one(exponentials)
    assert total != exponentials.sum()
    assert softmax_in_sequence(scores)[-1] == 1 / total
    assert product_in_sequence(np.ones((1, 3000), np.float32), exponentials[:, None]).item() == total
