"""Test gradients of a model from `load(folder)`, whose parameters are matched by name or by value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from flax import nnx

from transparity_conformance import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Report
from transparity_conformance.running.gradients import found_by_rows
from transparity_conformance.running.hub import loaded_here
from transparity_flax.transformer import Transformer

Change = Callable[[Any], Any]


def written(folder: Path, family: str) -> Checkpoint:
    config = example_config(family)
    export_checkpoint(family, config, probe_parameters(config, 3), folder)
    return import_checkpoint(folder)


def checked(folder: Path, change: Change, family: str = "llama") -> Report:
    def load(folder: str) -> Any:
        return change(transformers.AutoModelForCausalLM.from_pretrained(folder))

    given = written(folder, family)
    with loaded_here(load, family) as build:
        return check(build, family, config=given.config, parameters=given.parameters, logits_only=True)


def claim(report: Report) -> str | None:
    return next((each.verdict for each in report.claims if each.id == "gradients"), None)


def detached(model: Any) -> Any:
    """Stop the gradient at one value projection."""
    model.model.layers[1].self_attn.v_proj.register_forward_hook(lambda module, given, value: value.detach())
    return model


def doubled(model: Any) -> Any:
    """Double the gradient through one feed-forward."""

    def twice(module: Any, given: Any, value: Any) -> None:
        if value.requires_grad:
            value.register_hook(lambda gradient: 2 * gradient)

    model.model.layers[1].mlp.gate_proj.register_forward_hook(twice)
    return model


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (detached, "decoder.layers.1.self_attention.value.weight"),
        (doubled, "decoder.layers.1.feed_forward.gate.weight"),
    ],
)
def test_a_wrong_backward_pass_with_right_logits_diverges(change: Change, where: str, tmp_path: Path) -> None:
    report = checked(tmp_path / "model", change)
    assert (report.verdict, claim(report)) == ("diverges", "diverges"), as_text([report])
    assert report.faults[-1].where == f"gradient.{where}"


def test_numbers_are_found_as_rows_and_columns() -> None:
    random = np.random.default_rng(0)
    one, two, bias = random.normal(size=(3, 5)), random.normal(size=(4, 5)), random.normal(size=5)
    wanted = {name: value.astype(np.float32) for name, value in {"one": one, "two": two, "bias": bias}.items()}
    packed = np.concatenate([wanted["two"], wanted["one"]])[::-1].T
    found = found_by_rows(wanted, {"packed": packed, "b": wanted["bias"], "other": packed * 2})
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].take({"packed": packed, "b": wanted["bias"]}), value)
    assert not found_by_rows(wanted, {"twice": np.concatenate([packed, packed])})


class Port(nnx.Module):
    """A model with one argument."""

    def __init__(self, inner: Transformer) -> None:
        self.inner = inner

    def __call__(self, tokens: Any) -> Any:
        return self.inner(tokens=tokens)


class Routing(Port):
    """A model with the argument of `transformers` for the logits of routers."""

    def __call__(self, tokens: Any, output_router_logits: bool = False) -> Any:
        return self.inner(tokens=tokens)


@pytest.mark.parametrize(
    ("load", "is_offered"),
    [
        (transformers.AutoModelForCausalLM.from_pretrained, True),
        (lambda folder: Routing(Transformer(example_config("mixtral"), rngs=nnx.Rngs(0))), False),
    ],
    ids=["pytorch", "flax"],
)
def test_only_a_loaded_module_of_pytorch_offers_the_auxiliary_loss(
    load: Change, is_offered: bool, tmp_path: Path
) -> None:
    config = written(tmp_path / "model", "mixtral").config
    with loaded_here(load, "mixtral") as build:
        forward: Any = build(config, str(tmp_path / "model"))
    takes = inspect.signature(forward.loss_and_gradients).parameters
    assert ("router_aux_loss_coef" in takes) == is_offered


@pytest.mark.parametrize("axes", [(24, 3, 8), (3, 8, 24)])
def test_a_tensor_of_three_axes_is_two_matrices(axes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    wanted = {"w": random.normal(size=(24, 24)).astype(np.float32), "b": random.normal(size=24).astype(np.float32)}
    given = {"kernel": wanted["w"].T.reshape(axes), "bias": wanted["b"].reshape(3, 8)}
    found = found_by_rows(wanted, given)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].take(given), value)
