"""Only wrong values are named: a swap does not blame its correct side, and equivalent causes are all listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.ports import Carry, port

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.report import Report


def copied(into: str, source: str) -> Carry:
    def carry(config: TransformerConfig, parameters: Arrays) -> Arrays:
        kinds = [name.removeprefix(f"{into}.") for name in parameters if name.startswith(f"{into}.")]
        return {f"{into}.{kind}": parameters[f"{source}.{kind}"] for kind in kinds}

    return carry


def both(*carries: Carry) -> Carry:
    def carry(config: TransformerConfig, parameters: Arrays) -> Arrays:
        found = Arrays()
        for each in carries:
            found |= each(config, parameters)
        return found

    return carry


def named(report: Report) -> set[str]:
    return {cause.mistake for fault in report.faults for cause in fault.causes}


ATTENTION = "decoder.layers.0.self_attention"
VIEWS = pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])


@VIEWS
def test_one_side_of_an_exchange_is_not_called_one(logits_only: bool) -> None:
    alone = copied(f"{ATTENTION}.query", f"{ATTENTION}.key")
    report = check(port(alone), "notes-lm", logits_only=logits_only)
    assert named(report) == {"weight-duplicated"}, sentence(report)
    exchanged = both(alone, copied(f"{ATTENTION}.key", f"{ATTENTION}.query"))
    report = check(port(exchanged), "notes-lm", logits_only=logits_only)
    assert named(report) == {"weight-swapped"}, sentence(report)


@VIEWS
def test_one_norm_used_twice_is_no_exchange(logits_only: bool) -> None:
    norms = [f"decoder.layers.1.{name}_norm" for name in ("self_attention", "feed_forward")]
    report = check(port(copied(*norms)), "notes-lm", logits_only=logits_only)
    assert named(report) == {"norm-duplicated"}, sentence(report)
    report = check(port(both(copied(*norms), copied(*norms[::-1]))), "notes-lm", logits_only=logits_only)
    assert named(report) == {"norm-swapped"}, sentence(report)


@VIEWS
def test_queries_keys_and_values_in_another_order_are_named(logits_only: bool) -> None:
    def carry(config: TransformerConfig, parameters: Arrays) -> Arrays:
        order, found = ("value", "query", "key"), Arrays()
        for layer in range(config.num_decoder_layers):
            scope = f"decoder.layers.{layer}.self_attention"
            for role, source in zip(("query", "key", "value"), order, strict=True):
                found |= copied(f"{scope}.{role}", f"{scope}.{source}")(config, parameters)
        return found

    report = check(port(carry), "notes-lm", logits_only=logits_only)
    assert named(report) == {"packed-order"}, sentence(report)


def of_the_first_layer(config: TransformerConfig, parameters: Arrays) -> Arrays:
    here = {name: name.replace(".layers.1.", ".layers.0.") for name in parameters if ".layers.1." in name}
    return {name: parameters[source] for name, source in here.items()}


@VIEWS
def test_layers_that_share_their_weights_are_named(logits_only: bool) -> None:
    report = check(port(of_the_first_layer), "notes-lm", logits_only=logits_only)
    assert named(report) == {"layer-shared"}, sentence(report)


def test_a_scale_in_front_of_a_norm_is_tied_with_eps() -> None:
    def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(0.7) if name == "decoder.layers.1.output" else value

    report = check(port(change=change), "notes-lm", logits_only=True)
    (fault,) = report.faults
    assert {fault.causes[0].mistake, *fault.indistinguishable} >= {"norm-eps", "norm-input-scale"}


def test_what_remains_is_compared_with_rounding() -> None:
    def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(1 + 2e-5) if name.endswith("attention.scores") else value

    report = check(port(change=change), "notes-lm")
    assert named(report) == {"attention-scale"} and "something else remains" not in sentence(report)


@VIEWS
def test_a_number_that_one_probe_refutes_is_not_certain(logits_only: bool) -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        ratio = (3 * config.head_dim) ** -0.5 / config.score_scale

        def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
            return value * np.float32(ratio) if name.endswith("attention.scores") else value

        return port(change=change)(config, parameters)

    report = check(build, "notes-attention", logits_only=logits_only)
    assert named(report) == {"attention-scale"} and "√embed_dim" not in report.faults[0].causes[0].says
    assert len(report.faults) == len({fault.where for fault in report.faults}), sentence(report)
