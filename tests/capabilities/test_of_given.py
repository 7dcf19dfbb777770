"""Test that generation, beams, gradients and steps use the given parameters, such as a checkpoint's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.pool.port import Offering
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.requests import following, given_requests
from transparity_conformance.capabilities.table import OF_GIVEN
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probe_parameters, probes_with
from transparity_conformance.report.check.terminal import as_text
from transparity_conformance.report.report import Report
from transparity_numpy.decoding.steps import next_logits
from transparity_numpy.port import build as numpy_build
from transparity_pytorch.port import build as pytorch_build

Arrays = dict[str, np.ndarray]

CONFIG = dataclasses.replace(CASES["llama"], max_length=64)
PARAMETERS = probe_parameters(CONFIG, 5)


def right(method: Any) -> Any:
    return method


def changing(change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda method: lambda *given, **named: change(method(*given, **named))


def of_gradient(name: str, factor: float) -> Callable[..., Any]:
    return changing(lambda found: (found[0], {**found[1], name: found[1][name] * factor}))


def offering(forward: Any, **offered: Callable[..., Any]) -> Offering:
    return Offering(forward.logits, **{name: wrong(getattr(forward, name)) for name, wrong in offered.items()})


def checked(backend: Any = numpy_build, parameters: Arrays = PARAMETERS, **offered: Callable[..., Any]) -> Report:
    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        return offering(backend(config, parameters), **offered)

    return check(build, config=CONFIG, parameters=parameters, budget=0)


def claims(report: Report) -> dict[str, str]:
    return {claim.id: claim.verdict for claim in report.claims}


@pytest.mark.long
def test_all_that_needs_no_parameters_of_its_own_is_compared_with_given_ones() -> None:
    every: dict[str, Any] = dict.fromkeys([row.attribute for row in OF_GIVEN], right)
    report = checked(pytorch_build, **every, train=right)
    assert report.verdict == "agrees", as_text([report])
    assert claims(report).keys() >= {"loss", "gradients", "generate", "beam_search", "step"}
    lines = [line for line in report.not_compared if line.startswith(("generate", "train"))]
    assert any("only greedy decoding is compared" in line for line in lines), lines
    (generated,) = (claim for claim in report.claims if claim.id == "generate")
    assert generated.reach.startswith("prompts of 7 tokens in 8 rows")
    assert any(line.startswith("train: not compared, because the parameters were given") for line in lines), lines


def test_a_model_is_not_built_again_with_parameters_that_were_not_given() -> None:
    built = []

    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        built.append(all(np.array_equal(value, PARAMETERS[name]) for name, value in parameters.items()))
        return offering(numpy_build(config, parameters), generate=right, beam_search=right, step=right)

    report = check(build, config=CONFIG, parameters=PARAMETERS, logits_only=True)
    assert report.verdict == "agrees" and all(built)


def test_a_near_tie_with_given_parameters_is_told_from_a_mistake() -> None:
    head = PARAMETERS["head.weight"].copy()
    head[2::2] = head[1:-1:2] if len(head) % 2 else head[1::2]
    tied = PARAMETERS | {"head.weight": head}

    def other_of_the_two(found: Any) -> np.ndarray:
        tokens = np.array(found)
        last = tokens[:, -1]
        twins = np.where(last % 2 == 1, last + 1, last - 1)
        tokens[:, -1] = np.where((last > 0) & (twins < len(head)), twins, last)
        return tokens

    report = checked(parameters=tied, generate=changing(other_of_the_two))
    assert claims(report)["generate"] == "agrees", as_text([report])


@pytest.mark.parametrize("factor", [1.0, 1.01])
@pytest.mark.parametrize(
    "name", ["decoder.layers.1.feed_forward.down.weight", "decoder.layers.0.self_attention_norm.weight"]
)
def test_all_gradients_of_a_large_model_are_compared_at_once_and_a_wrong_one_is_located(
    name: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transparity_conformance.oracle.probes.LARGE", 1000)
    report = checked(pytorch_build, loss_and_gradients=of_gradient(name, factor))
    (found,) = (each for each in report.claims if each.id == "gradients")
    if factor == 1:
        assert (found.verdict, found.where) == ("agrees", "all together"), as_text([report])
    else:
        assert found.verdict == "diverges" and report.faults[-1].where == f"gradient.{name}"


def test_gradients_that_need_more_memory_than_is_free_are_listed_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("transparity_conformance.capabilities.learning.gradients.available_memory", lambda: 10**4)
    report = checked(pytorch_build, loss_and_gradients=right)
    assert "gradients" not in claims(report)
    (line,) = (line for line in report.not_compared if line.startswith("loss_and_gradients"))
    assert "of memory, but the free memory is 10 kB" in line


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_logits_of_one_pass_are_those_of_a_pass_for_each_token(name: str) -> None:
    config = dataclasses.replace(CASES[name], max_length=64)
    probe = next(iter(probes_with(config, probe_parameters(config), name).values()))
    (request,) = given_requests(probe).first
    tokens = np.concatenate([request.prompt, np.ones((len(request.prompt), request.steps), int)], axis=1)
    given = (request.config, request.exact, tokens)
    each = [next_logits(*given, request.begins + new, None, request.source, 0) for new in range(request.steps)]
    error = np.abs(following(request, request.exact, tokens, request.steps) - np.stack(each, axis=1)).max()
    assert error <= probe.oracle.budget("logits", "float64")
