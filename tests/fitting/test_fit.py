import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fitting import decoders as ports
from tests.helpers import invoke

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.identify.fitting.answer import templates
from transparity_conformance.identify.fitting.fit import fit, fit_port
from transparity_conformance.identify.fitting.values.linears import linears
from transparity_conformance.identify.fitting.values.numbers import is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.report.fields import as_rows, meanings

FILE = Path(__file__).with_name("decoders.py")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FILE.parents[2]))  # the process of a port imports `tests.helpers`


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("needs", "needs takes 1 argument; expected none"),
        ("no_module", "returned 3, which contains no tensor; expected a torch, flax, Equinox"),
        ("Bag", "No operation is a softmax over the tokens"),
        ("missing", "has no 'missing'"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_one_sentence(name: str, says: str) -> None:
    result = invoke("fit", f"{FILE}:{name}")
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_port_that_ends_the_process_is_told_in_one_sentence(tmp_path: Any) -> None:
    file = tmp_path / "ends.py"
    file.write_text("import os\n\ndef port():\n    os._exit(7)\n")
    with pytest.raises(PortError, match="The port's process ended with the exit code 7"):
        fit_port(f"{file}:port")


def described(*arguments: str) -> Any:
    result = invoke("describe", *arguments, "--json", "-")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_field_has_a_meaning_and_values() -> None:
    assert list(meanings()) == list(FIELD_TYPES)
    assert all(row["values"] for row in as_rows())


def test_the_fields_are_shown_and_written_as_json_with_their_values_and_defaults() -> None:
    shown = " ".join(invoke("describe", "--fields").stdout.split())
    assert "norm_position: pre, post, sandwich, post-branch (default: post)" in shown
    assert "x + norm(f(norm(x))) (Gemma 2)" in shown
    rows = {row["name"]: row for row in described("--fields")}
    assert rows["mask_value"]["default"] == "-inf"
    assert rows["activation"]["values"] == ["relu", "gelu", "gelu-tanh", "gelu-quick", "silu"]
    assert "default" not in rows["architecture"]


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5", "vanilla", "translation"])
def test_a_template_is_described_as_json(name: str) -> None:
    answer = described(name)
    config = TransformerConfig.from_dict(answer["config"])
    assert config == templates()[name]
    assert answer["parameters"] == {each: list(shape) for each, shape in parameter_shapes(config).items()}
    assert answer["taps"]["logits"][0] == "batch"


def test_a_fit_that_stops_writes_what_it_found(tmp_path: Path) -> None:
    file = tmp_path / "partial.json"
    result = invoke("fit", f"{ports.__file__}:whole", "--json", file)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "The nearest template is" in result.stderr and "--against" in result.stderr
    assert '"num_heads": 3' in file.read_text()
    port = tmp_path / "my.py"
    port.write_text("from torch import nn\n\n\ndef made():\n    return nn.Linear(3, 3)\n")
    result = invoke("fit", f"{port}:made", "--json", file)
    assert (result.exit_code, set(json.loads(file.read_text()).values())) == (2, {"?"})
    assert f'{file} has the fields that were found, and "?" for every other field. If' in result.stderr


@pytest.mark.long
def test_a_fit_that_is_not_confirmed_is_inconclusive() -> None:
    result = invoke("fit", f"{FILE}:of_two_eps")
    assert result.exit_code == 3
    assert "Not confirmed" in result.stdout


def test_the_mode_and_the_weights_of_a_module_behind_a_function_are_put_back() -> None:
    model = ports.GPT().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(lambda: lambda ids: model(ids)[0])
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_rows_of_a_map_start_with_the_batch_if_its_input_has_them_among_the_heads() -> None:
    random = np.random.default_rng(0)
    context, weight = random.normal(size=(5, 2 * 3, 4)), random.normal(size=(7, 12))  # (time, rows · heads, head_dim)
    rows = context.reshape(5 * 2, 12)
    values = {"aten.bmm": context, "aten.view": rows, "aten.mm": rows @ weight.T}
    operations = [
        Operation(name, value, (index - 1,) * (index > 0), ()) for index, (name, value) in enumerate(values.items())
    ]
    (found,) = linears(operations, {"weight": weight}, 2)
    np.testing.assert_array_equal(found.given, context.reshape(5, 2, 12).swapaxes(0, 1).reshape(10, 12))


@pytest.mark.filterwarnings("error")
def test_infinite_elements_are_compared_without_a_warning() -> None:
    infinite = np.array([-np.inf, 1.0])
    assert not is_same(infinite, infinite)
    assert not is_same(infinite, np.zeros(2))
