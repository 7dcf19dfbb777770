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
from transparity_conformance.running.process.wire import operations_of, recorded, table_of

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
    taps, here = run_listening(built(load_port(spec), probe), probe)
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
        ("rows", [[0, 0, []], [0, 0, [1]]]),
        ("rows", [[0, 0, []], [7, 0, [0]]]),
        ("rows", [[0, 0, []], [0, 1, [0]]]),
        ("rows", [[0, 0, []], [0, -1, [0]]]),
        ("rows", [[0, 0, []]]),
        ("rows", [[0, 0, [], 0], [0, 0, [0]]]),
        ("sources", [["file.py"]]),
        ("stacks", [[0]]),
        ("names", 7),
    ],
)
def test_what_describes_no_operations_is_refused(field: str, value: Any) -> None:
    table = {"names": ["aten.mm.default"], "sources": [], "stacks": [[]], "rows": [[0, 0, []], [0, 0, [0]]]}
    assert [each.inputs for each in operations_of(table, [np.ones(2), np.ones(2)])] == [(), (0,)]
    with pytest.raises((ValueError, LookupError)):
        operations_of(table | {field: value}, [np.ones(2), np.ones(2)])
    for values in ([np.ones(2)], [np.ones(2), np.ones(0)], [np.ones(2), "a"]):
        with pytest.raises(ValueError, match=r"shorter|no value|could not"):
            operations_of(table, values)


@pytest.mark.parametrize(
    "rest",
    [
        ([np.ones(2)], [True, False]),
        ([np.ones(3), None], [True, False]),
        ([np.ones(0), None], [True, False]),
        (["a", None], [True, False]),
        ([np.zeros(2), None], [True]),
        ([np.zeros(2), None], None),
        (),
    ],
)
def test_what_describes_no_backward_pass_is_refused(rest: Any) -> None:
    operations = [Operation("mm", np.ones(2), (), ()), Operation("\x1b[31m", np.ones(2), (0,), ())]
    given = operations_of(table_of(operations), [each.value for each in operations])
    assert given[1].name.isprintable()
    right = recorded(given, [np.zeros(2), None], [True, False])
    assert isinstance(right, Backward)
    assert [each.inputs for each in right.operations] == [(), (0,)] and right.passes == [True, False]
    with pytest.raises((ValueError, LookupError, TypeError)):
        recorded(given, *rest)


@pytest.mark.parametrize("answer", ["None", "[1, []]", "type('Table', (dict,), {})()"])
def test_a_malformed_record_is_an_error_of_the_port(spec: str, probe: Probe, answer: str) -> None:
    file = Path(spec.removesuffix(":build"))
    package = "transparity_conformance.running.process"
    file.write_text(f"from {package} import requests\nrequests.listen = lambda *_: {answer}\n{PORT}")
    build = isolated_build(spec)
    with pytest.raises(PortProcessError, match="sent a malformed record of its operations"):
        run_listening(built(build, probe), probe)
    assert not build.process.is_running


@pytest.mark.parametrize("framework", PORTS_OF)
def test_a_pass_of_a_probe_that_is_listened_to_is_within_the_target(framework: str) -> None:
    found = measured(framework, "probe")
    assert found["is_within"], found
    assert found["operations"] > 100 and found["recorded"] > found["taps"]
