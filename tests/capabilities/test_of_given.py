import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.pool.port import Offering
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.requests import following, given_requests
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


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_logits_of_one_pass_are_those_of_a_pass_for_each_token(name: str) -> None:
    config = dataclasses.replace(CASES[name], max_length=64)
    probe = next(iter(probes_with(config, probe_parameters(config), name).values()))
    (request,) = given_requests(probe)["generate"].first
    tokens = np.concatenate([request.prompt, np.ones((len(request.prompt), request.steps), int)], axis=1)
    given = (request.config, request.exact, tokens)
    each = [next_logits(*given, request.begins + new, None, request.source, 0) for new in range(request.steps)]
    error = np.abs(following(request, request.exact, tokens, request.steps) - np.stack(each, axis=1)).max()
    assert error <= probe.oracle.budget("logits", "float64")


def test_a_model_is_not_built_again_with_parameters_that_were_not_given() -> None:
    built = []

    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        built.append(all(np.array_equal(value, PARAMETERS[name]) for name, value in parameters.items()))
        forward = numpy_build(config, parameters)
        return offering(forward, **dict.fromkeys(("generate", "beam_search", "step"), lambda method: method))

    report = check(build, config=CONFIG, parameters=PARAMETERS, logits_only=True)
    assert report.verdict == "agrees" and all(built)
