import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from flax import nnx

from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.learning.gradients import GRADIENTS_OF_GIVEN
from transparity_conformance.capabilities.table import compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.checkpoints.importing import Checkpoint, import_checkpoint
from transparity_conformance.oracle.probes import probe_parameters, probes_with
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Report
from transparity_conformance.running.gradients import FROZEN, NO_GRAPH, found_by_rows
from transparity_conformance.running.hub import loaded_here
from transparity_flax.state.parameters import load as load_parameters
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
    model.model.layers[1].self_attn.v_proj.register_forward_hook(lambda module, given, value: value.detach())
    return model


def doubled(model: Any) -> Any:
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
    def __init__(self, inner: Transformer) -> None:
        self.inner = inner

    def __call__(self, tokens: Any) -> Any:
        return self.inner(tokens=tokens)


class Routing(Port):
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


@pytest.mark.parametrize(("coefficient", "verdict"), [(0.001, "agrees"), (0.0, "diverges"), (1.0, "diverges")])
def test_the_loss_that_a_model_computes_from_labels_contains_the_auxiliary_loss(
    coefficient: float, verdict: str, tmp_path: Path
) -> None:
    def changed(model: Any) -> Any:
        assert model.config.router_aux_loss_coef == 0.001
        model.router_aux_loss_coef = coefficient
        return model

    report = checked(tmp_path / "model", changed, "mixtral")
    assert [each.verdict for each in report.claims if "router_aux_loss_coef" in each.id] == [verdict, verdict]


@pytest.mark.parametrize("axes", [(24, 3, 8), (3, 8, 24)])
def test_a_tensor_of_three_axes_is_two_matrices(axes: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    wanted = {"w": random.normal(size=(24, 24)).astype(np.float32), "b": random.normal(size=24).astype(np.float32)}
    given = {"kernel": wanted["w"].T.reshape(axes), "bias": wanted["b"].reshape(3, 8)}
    found = found_by_rows(wanted, given)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name].take(given), value)


class Stopped(Port):
    """A JAX model whose last layer's queries have no gradient."""

    def __init__(self, inner: Transformer) -> None:
        super().__init__(inner)
        layer: Any = inner.decoder.layers[1]
        layer.self_attention.query = Silent(layer.self_attention.query)


class Silent(nnx.Module):
    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> Any:
        return jax.lax.stop_gradient(self.layer(x))


@pytest.mark.long
@pytest.mark.parametrize(("model", "faults"), [(Port, []), (Stopped, ["self_attention.query.weight"])])
def test_a_stopped_gradient_in_jax_diverges(model: Change, faults: list[str], tmp_path: Path) -> None:
    given = written(tmp_path / "model", "llama")

    def load(folder: str) -> Any:
        inner = Transformer(given.config, rngs=nnx.Rngs(0))
        load_parameters(inner, given.parameters, np.float32)
        return model(inner)

    probe = probes_with(given.config, given.parameters, "llama")["mixed"]
    with loaded_here(load, "llama") as build:
        port = BuiltPort(build, build(given.config, str(tmp_path / "model")))
        found = compare_capability(GRADIENTS_OF_GIVEN, port, ForwardPass({"mixed": probe}, {}, "float32"))
    assert [each.verdict for each in found.claims if each.id == "gradients"] == ["diverges" if faults else "agrees"]
    assert [fault.where.partition("layers.1.")[2] for fault in found.faults] == faults
    assert not [line for line in found.not_compared if line.startswith("gradients")], found.not_compared


def without_gradients(model: Any) -> Any:
    model.forward = torch.no_grad()(model.forward)
    return model


def frozen(model: Any) -> Any:
    model.model.norm.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("change", "verdict", "says"),
    [
        (without_gradients, None, NO_GRAPH),
        (lambda model: model.requires_grad_(False), None, NO_GRAPH),
        (frozen, "agrees", f"decoder.final_norm.weight: {FROZEN}"),
    ],
)
def test_a_right_model_that_is_not_trained_agrees(
    change: Change, verdict: str | None, says: str, tmp_path: Path
) -> None:
    report = checked(tmp_path / "model", change)
    assert (report.verdict, claim(report)) == ("agrees", verdict), as_text([report])
    (line,) = (line for line in report.not_compared if line.startswith("gradients"))
    assert line.endswith(says)
