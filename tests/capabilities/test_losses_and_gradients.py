import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from meta.pool.port import Offering
from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.taps import recording
from transparity.training import dropout_masks
from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.table import CAPABILITIES, compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.report.report import CapabilityResult
from transparity_numpy.port import build as numpy_build
from transparity_pytorch.port import build as pytorch_build

Gradients = dict[str, np.ndarray]


def test_a_loss_beside_logits_of_another_shape_is_not_compared() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = numpy_build(config, parameters, dtype="float32")
        return Offering(lambda **tokens: forward.logits(**tokens)[:, :-1], loss=lambda targets, **tokens: 1.0)

    report = check(build, preset="notes-lm")
    assert report.verdict == "diverges"
    assert any(says.startswith("loss: no probe") for says in report.not_compared)


def in_parts(means: str) -> Callable[..., Any]:
    """Return a port that sums losses and gradients over micro-batches; `means` names its mistake, or is empty."""

    def build(config: TransformerConfig, parameters: Gradients) -> Offering:
        forward = pytorch_build(config, parameters)

        def said(targets: np.ndarray, *, micro_batches: int = 1, checkpointing: bool = False, **tokens: Any) -> Any:
            rows = np.array_split(np.arange(len(targets)), micro_batches)
            parts = [forward.loss_and_gradients(targets[i], **{n: x[i] for n, x in tokens.items()}) for i in rows]
            counts = np.array([(targets[i] != config.pad_id).sum() for i in rows])
            even = np.full(micro_batches, 1.0 if "added" in means else 1 / micro_batches)
            share = {what: even if what in means else counts / counts.sum() for what in ("losses", "gradients")}
            loss = sum(part * each for part, (each, _) in zip(share["losses"], parts, strict=True))
            scale = 2 if checkpointing and means == "checkpointing" else 1
            weights = share["gradients"] * scale
            return loss, {n: sum(w * g[n] for w, (_, g) in zip(weights, parts, strict=True)) for n in parts[0][1]}

        return Offering(forward, loss_and_gradients=said)

    return build


OPTIONAL = {"gradients.micro_batches", "gradients.micro_batches.loss", "gradients.checkpointing"}


def test_micro_batches_and_checkpointing_that_leave_the_gradients_unchanged_agree() -> None:
    report = check(in_parts(""), preset="notes-lm")
    assert report.verdict == "agrees", report
    assert {claim.id for claim in report.claims} >= OPTIONAL


@pytest.mark.parametrize(
    ("means", "claims", "cause"),
    [
        ("losses and gradients", {"gradients.micro_batches.loss"}, "loss-per-micro-batch"),
        ("gradients", {"gradients.micro_batches"}, "loss-per-micro-batch"),
        ("gradients added", {"gradients.micro_batches"}, "loss-per-micro-batch"),
        ("losses and gradients added", {"gradients.micro_batches.loss"}, "loss-per-micro-batch"),
        ("checkpointing", {"gradients.checkpointing"}, "gradient-scale"),
    ],
)
def test_options_that_change_the_gradients_are_named(means: str, claims: set[str], cause: str) -> None:
    report = check(in_parts(means), preset="notes-lm")
    assert {claim.id for claim in report.claims if claim.verdict == "diverges"} == claims
    assert {claim.id for claim in report.claims} >= OPTIONAL  # one wrong option does not hide the other one
    (fault,) = report.faults
    assert [each.mistake for each in fault.causes] == [cause], fault


def test_options_are_not_compared_if_the_gradients_without_them_are_wrong() -> None:
    def build(config: TransformerConfig, parameters: Gradients) -> Offering:
        right = in_parts("")(config, parameters)

        def said(targets: np.ndarray, *, micro_batches: int = 1, checkpointing: bool = False, **tokens: Any) -> Any:
            loss, gradients = right.loss_and_gradients(targets, **tokens)
            return loss, {name: 2 * value for name, value in gradients.items()}

        return Offering(right, loss_and_gradients=said)

    report = check(build, preset="notes-lm")
    assert [claim.id for claim in report.claims if claim.verdict == "diverges"] == ["gradients"]
    for name in ("micro_batches", "checkpointing"):
        assert f"gradients.{name}: the result without this option is wrong" in report.not_compared


def with_dropout(wrong: str) -> Callable[..., Any]:
    """Return a port that draws dropout masks from a seed; `wrong` names its mistake, or is empty."""

    def build(config: TransformerConfig, parameters: Gradients) -> Offering:
        forward, calls = pytorch_build(config, parameters), iter(range(100))

        def said(targets: np.ndarray, *, seed: int | None = None, checkpointing: bool = False, **tokens: Any) -> Any:
            if seed is None or wrong == "inactive":
                return forward.loss_and_gradients(targets, **tokens)
            drawn = seed + (wrong == "recomputed") * checkpointing + (wrong == "again") * next(calls)
            lengths = {name: value.shape[1] for name, value in tokens.items()}
            masks = dropout_masks(config, np.random.default_rng(drawn), len(targets), **lengths)
            loss, gradients = forward.loss_and_gradients(targets, masks=masks, **tokens)
            unknown = {name: "frozen" for name in gradients if wrong == "unknown" and name == "head.bias"}
            is_without = wrong == "missing" or (wrong == "missing once" and checkpointing)
            left_out = {"head.bias"} if is_without else unknown
            return loss, {name: value for name, value in gradients.items() if name not in left_out}, unknown

        return Offering(forward, loss_and_gradients=said)

    return build


DROPPING = preset("notes-lm").resized()
NO_GRADIENT = "with a seed, the port returns no gradient of the parameter's shape for head.bias"


def gradients_of(build: Callable[..., Any], config: TransformerConfig) -> CapabilityResult:
    probe = Probe("config", "mixed", "", config, probe_parameters(config), mixed_inputs(config))
    logits = {"mixed": probe.oracle.expected["logits"].astype(np.float32)}
    port = BuiltPort(build, build(config, dict(probe.parameters)))
    return compare_capability(CAPABILITIES["gradients"], port, ForwardPass({"mixed": probe}, logits, "float32"))


def verdicts(found: CapabilityResult) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in found.claims}


@pytest.mark.parametrize(
    ("wrong", "listed"), [("", ()), ("unknown", ("gradients.dropout: head.bias: frozen",))], ids=["all", "some"]
)
def test_dropout_masks_that_a_seed_determines_agree(wrong: str, listed: tuple[str, ...]) -> None:
    found = gradients_of(with_dropout(wrong), DROPPING)
    assert (verdicts(found)["gradients.dropout"], found.not_compared) == ("agrees", listed)


@pytest.mark.parametrize(
    ("wrong", "cause", "says"),
    [
        ("recomputed", "dropout-redrawn", "recomputation draws another dropout mask than the first forward pass"),
        ("again", "dropout-redrawn", "two runs with the same seed draw different dropout masks"),
        ("inactive", "dropout-inactive", "with a seed, the gradients equal the gradients without dropout"),
        ("missing", "gradient-missing", NO_GRADIENT),
        ("missing once", "gradient-missing", NO_GRADIENT),
    ],
)
def test_wrong_dropout_masks_are_named(wrong: str, cause: str, says: str) -> None:
    (fault,) = gradients_of(with_dropout(wrong), DROPPING).faults
    assert fault.where == "gradients.dropout"
    assert [(each.mistake, each.says) for each in fault.causes] == [(cause, says)]


def test_gradients_with_dropout_are_listed_if_they_are_not_compared() -> None:
    (line,) = gradients_of(pytorch_build, DROPPING).not_compared
    assert line == "gradients.dropout: the port's method loss_and_gradients has no argument checkpointing or seed"
    without = dataclasses.replace(DROPPING, dropout=0.0)
    assert not gradients_of(pytorch_build, without).not_compared
    assert "gradients.dropout: the configuration has no dropout" in gradients_of(with_dropout(""), without).not_compared


MIXTURE = example_config("mixtral")


def with_router_loss(rule: Callable[[list[torch.Tensor], int], torch.Tensor]) -> Callable[..., Any]:
    """Return a port that adds the auxiliary loss that `rule` computes from the routers' logits."""

    def build(config: TransformerConfig, parameters: Gradients) -> Offering:
        forward = pytorch_build(config, parameters)

        def said(targets: np.ndarray, *, router_aux_loss_coef: float = 0.0, **tokens: np.ndarray) -> Any:
            taps: dict[str, torch.Tensor] = {}
            given = {name: torch.from_numpy(value) for name, value in tokens.items()}
            logits = forward.model(**given, tap=recording(taps))
            layers = [value.flatten(0, 1) for name, value in taps.items() if name.endswith("router_logits")]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(targets).flatten())
            auxiliary = rule(layers, config.experts_per_token)
            loss = loss + router_aux_loss_coef * auxiliary
            named = dict(forward.model.named_parameters())
            found = torch.autograd.grad(loss, list(named.values()), materialize_grads=True)
            return float(loss.detach()), {n: each.numpy() for n, each in zip(named, found, strict=True)}

        return Offering(forward, loss_and_gradients=said)

    return build


def of_transformers(layers: list[torch.Tensor], count: int) -> Any:
    return load_balancing_loss_func(tuple(layers), layers[0].shape[-1], count)


@pytest.mark.parametrize("divisor", [1, MIXTURE.experts_per_token])
def test_the_auxiliary_loss_of_transformers_agrees(divisor: int) -> None:
    found = gradients_of(with_router_loss(lambda layers, count: of_transformers(layers, count) / divisor), MIXTURE)
    assert not found.faults, found.faults
    assert verdicts(found).keys() >= {"gradients.router_aux_loss_coef", "gradients.router_aux_loss_coef.loss"}


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (lambda layers, count: torch.zeros(()), "the auxiliary loss is missing"),
        (lambda layers, count: of_transformers(layers, count).detach(), "the gradients do not contain the auxiliary"),
        (lambda layers, count: sum(of_transformers([each], count) for each in layers), "the auxiliary loss is the sum"),
        (lambda layers, count: of_transformers(layers, 1), "the auxiliary loss counts only each token's first expert"),
    ],
    ids=["no loss", "a loss without gradients", "a loss for each layer", "first choices"],
)
def test_another_auxiliary_loss_is_named(rule: Any, says: str) -> None:
    ((cause,),) = [fault.causes for fault in gradients_of(with_router_loss(rule), MIXTURE).faults]
    assert cause.mistake == "router-loss"
    assert cause.says.startswith(says)
