"""Test that a port in its own process is recorded like a port in this process, and that recording takes little time."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta.listening.cost import PORTS_OF, measured
from transparity_conformance.capabilities.port_calls import PortProcessError
from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import Probe, probes
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.process.isolation import isolated_build
from transparity_conformance.running.process.running import built, run, run_listening
from transparity_conformance.running.process.wire import described, described_backward, received, received_backward

PORT = """
import torch
from torch.nn import functional as F

def build(config, parameters):
    weights = {name: torch.from_numpy(value) for name, value in parameters.items()}

    def forward(tokens):
        x = weights["decoder.token_embedding.weight"][torch.from_numpy(tokens)]
        q = k = v = x[:, None]
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]  # attend
        logits = x @ torch.ones(x.shape[-1], config.target_vocab_size)
        return logits
    return forward
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    file = tmp_path / "port.py"
    file.write_text(PORT)
    return f"{file}:build"


@pytest.fixture
def probe() -> Probe:
    return next(iter(probes("notes-lm").values()))


def test_operations_of_another_process_are_those_of_this_one(spec: str, probe: Probe) -> None:
    taps, here = run_listening(built(load_port(spec), probe), probe, "pytorch")
    with contextlib.closing(isolated_build(spec)) as build:
        forward = built(build, probe)
        far_taps, there = run_listening(forward, probe)
        assert np.array_equal(run(forward, probe)["logits"], far_taps["logits"])
    assert np.array_equal(taps["logits"], far_taps["logits"])
    assert [(each.name, each.inputs, each.source) for each in here] == [
        (each.name, each.inputs, each.source) for each in there
    ]
    assert all(np.array_equal(one.value, other.value) for one, other in zip(here, there, strict=True))
    (attended,) = [each for each in there if each.name == "attention.weights"]
    assert attended.source is not None
    assert attended.source.code == "x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0]"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("inputs", np.array([0, 1])),
        ("name", np.array([0, 7])),
        ("value", [np.ones(2), np.ones(0)]),
        ("value", [np.ones(2)]),
        ("sources", [["file.py"]]),
        ("stack", np.array([0, 1])),
        ("stack", np.array([0, -1])),
        ("stacks", [[0]]),
    ],
)
def test_what_describes_no_operations_is_refused(field: str, value: Any) -> None:
    answer = described([]) | {
        "name": np.array([0, 0]),
        "names": ["aten.mm.default"],
        "stack": np.array([0, 0]),
        "stacks": [[]],
        "inputs": np.array([0]),
        "counts": np.array([0, 1]),
        "value": [np.ones(2), np.ones(2)],
    }
    assert [each.inputs for each in received(answer)] == [(), (0,)]
    with pytest.raises((ValueError, LookupError, TypeError)):
        received(answer | {field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("operations", {}),
        ("operations", 7),
        ("gradients", [np.ones(2)]),
        ("gradients", [np.ones(3), None]),
        ("gradients", [np.ones(0), None]),
        ("gradients", ["a", None]),
        ("passes", [True]),
        ("passes", None),
    ],
)
def test_what_describes_no_backward_pass_is_refused(field: str, value: Any) -> None:
    operations = [Operation("mm", np.ones(2), (), ()), Operation("\x1b[31m", np.ones(2), (0,), ())]
    answer = described_backward(Backward(operations, [np.zeros(2), None], [True, False]))
    right = received_backward(answer)
    assert [each.inputs for each in right.operations] == [(), (0,)] and right.passes == [True, False]
    assert right.operations[1].name.isprintable()
    with pytest.raises((ValueError, LookupError, TypeError)):
        received_backward(answer | {field: value})


@pytest.mark.parametrize("answer", [None, {"names": 7}, described([]) | {"counts": np.array(["a"])}])
def test_a_malformed_record_is_an_error_of_the_port(spec: str, answer: Any) -> None:
    group = isolated_build(spec).process
    assert group.decoded(received, described([])) == []
    with pytest.raises(PortProcessError, match="sent a malformed record of its operations"):
        group.decoded(received, answer)
    assert not group.is_running


@pytest.mark.parametrize("framework", PORTS_OF)
def test_a_pass_of_a_probe_that_is_listened_to_is_within_the_target(framework: str) -> None:
    found = measured(framework, "probe")
    assert found["is_within"], found
    assert found["operations"] > 100 and found["recorded"] > found["taps"]
