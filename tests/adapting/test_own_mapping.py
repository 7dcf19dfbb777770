"""Test ports that load the parameters themselves: the checker reports a tensor that is loaded in the wrong place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from meta.adapting.measure import PORTS, adapted
from transparity.config import TransformerConfig
from transparity_conformance.cli import app
from transparity_conformance.identify.adapting.adapt import adapt
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.frameworks.modules import tensors_of

LAYER = "decoder.layers.{i}"
QUERY, KEY, VALUE = (f"{LAYER}.self_attention.{role}.weight" for role in ("query", "key", "value"))
GATE, UP = (f"{LAYER}.feed_forward.{role}.weight" for role in ("gate", "up"))
OUTPUT = f"{LAYER}.self_attention.output.weight"


def loading(port: str, lines: Mapping[str, str]) -> Callable[..., Any]:
    """Return a `build` that loads a port's parameters by its adapter, with some lines replaced."""
    make, right = PORTS[port][0], adapted(port).adapter
    adapter = Adapter({**right.lines, **lines}, right.zero, right.unused)

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Callable[..., Any]:
        module = make(config)
        tensors = tensors_of(module)
        values = adapter.tensors(config, parameters, {name: tensor.read() for name, tensor in tensors.items()})
        for name, value in values.items():
            tensors[name].write(value)

        def forward(tokens: np.ndarray) -> Any:
            with torch.no_grad():
                return module(torch.from_numpy(tokens))

        return forward

    return build


def sentences(port: str, lines: Mapping[str, str]) -> list[str]:
    return [each.says for each in adapt(loading(port, lines), PORTS[port][1]).misplaced]


@pytest.mark.parametrize("port", ["meta-llama", "phi3", "gpt2-conv1d"])
def test_a_right_mapping_has_nothing_to_tell(port: str) -> None:
    result = adapt(loading(port, {}), PORTS[port][1])
    assert result.is_proved and not result.misplaced


@pytest.mark.long
def test_rows_in_another_order_than_they_are_rotated_in_are_named() -> None:
    says = "the rows of your {} have the order for rotating {}, but your model rotates {}: "
    says += "permute them while you load them"
    halves, neighbours = "halves", "neighbors (as in Meta's code)"
    name = "layers.{i}.attention.wk.weight"
    assert sentences("meta-llama", {KEY: name}) == [says.format(name, halves, neighbours)]
    name = "model.layers.{i}.self_attn.k_proj.weight"
    permuted = f"{name}.view(K, H/2, 2, -1).permute(0, 2, 1, 3)"
    assert sentences("hub-llama", {KEY: permuted}) == [says.format(name, neighbours, halves)]


def test_a_square_weight_that_is_transposed_is_named() -> None:
    name = "transformer.h.{i}.attn.c_proj.weight"
    assert sentences("gpt2-conv1d", {OUTPUT: name}) == [f"your {name} is transposed: your model computes with {name}.T"]


FORGETFUL = """
import torch

from meta.adapting.decoders import MinGPT

NAMES = {"tok_emb.weight": "decoder.token_embedding.weight"}


def build(config, parameters):
    model = MinGPT(config)
    model.load_state_dict({name: torch.from_numpy(parameters[ours]) for name, ours in NAMES.items()}, strict=False)
    return lambda tokens: model.eval()(torch.from_numpy(tokens)).detach()
"""


def test_what_is_never_loaded_is_named_by_the_command(tmp_path: Path) -> None:
    port, config = tmp_path / "port.py", tmp_path / "config.json"
    port.write_text(FORGETFUL, encoding="utf-8")
    config.write_text(PORTS["mingpt"][1].to_json(), encoding="utf-8")
    result = CliRunner().invoke(app, ["adapt", f"{port}:build", "--config", str(config)])
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "no tensor contains the numbers of head.weight that your loader received" in said
    assert "numbers of token_embedding.weight" not in said
