"""`transparity fit` returns the configuration of a module without changing the module, or fails with one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.fitting import small_gpt
from typer.testing import CliRunner

from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.cli import app
from transparity_conformance.identify.fitting.fit import fit, fit_port

FILE = Path(__file__).with_name("small_gpt.py")


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
    result = CliRunner().invoke(app, ["fit", f"{FILE}:{name}"])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_fit_that_is_not_confirmed_is_inconclusive() -> None:
    result = CliRunner().invoke(app, ["fit", f"{FILE}:of_two_kinds"])
    assert result.exit_code == 3
    assert "Not confirmed" in result.stdout


def test_the_mode_of_a_module_behind_a_function_is_put_back() -> None:
    model = small_gpt.GPT().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fit(lambda: lambda ids: model(ids)[0])
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_a_port_that_ends_the_process_is_told_in_one_sentence(tmp_path: Any) -> None:
    file = tmp_path / "ends.py"
    file.write_text("import os\n\ndef port():\n    os._exit(7)\n")
    with pytest.raises(PortError, match="The port's process ended with the exit code 7"):
        fit_port(f"{file}:port")
