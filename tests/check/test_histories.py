"""Histories: a port that keeps something between its calls diverges, however well it answers at first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.capability import BuiltPort, ForwardPass
from transparity_conformance.capabilities.compare import compare_capability
from transparity_conformance.capabilities.decoding.generation import GENERATION
from transparity_conformance.capabilities.stranger import PortError
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.report.report import Report

torch_port = pytest.importorskip("transparity_pytorch.port")

PRESET = "notes-attention"


class Wrapped:
    """A right port, one method of which is replaced; `state` lives as long as the object."""

    def __init__(self, right: Any, wrong: Callable[..., Any], name: str, offers: tuple[str, ...]) -> None:
        self.right, self.wrong, self.name, self.state = right, wrong, name, dict[str, Any](calls=0)
        for offer in offers:
            setattr(self, offer, self._called(offer))

    def _called(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            method = self.right.logits if name == "forward" else getattr(self.right, name)
            if name != self.name:
                self.state[name] = True
                return method(*args, **named)
            self.state["calls"] += 1
            return self.wrong(self.state, method, *args, **named)

        return call

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._called("forward")(**tokens)


def checked(wrong: Callable[..., Any], name: str = "forward", *offers: str) -> Report:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Wrapped:
        return Wrapped(torch_port.build(config, parameters), wrong, name, offers)

    return check(build, preset=PRESET, logits_only=True)


def assert_history(report: Report, where: str) -> None:
    """The report diverges at `where`, because of what came before."""
    (fault,) = report.faults
    assert (report.verdict, fault.where) == ("diverges", where)
    assert [cause.mistake for cause in fault.causes] == ["history"]


def nudged(value: Any) -> Any:
    return value * 1.001


def from_the_sixth_call_on(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    return nudged(forward(**tokens)) if state["calls"] > 20 else forward(**tokens)


def in_one_call_of_twenty(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    return nudged(forward(**tokens)) if state["calls"] % 20 == 19 else forward(**tokens)


def the_answer_of_an_earlier_input(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    """Answers are kept by shape, as by a captured graph whose inputs are not copied in."""
    (given,) = tokens.values()
    if state["calls"] <= 10:
        return forward(**tokens)
    return state.setdefault(given.shape, forward(**tokens))


def after_a_longer_input(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    """A buffer that has grown is not cut again; it shows behind a long and a short input."""
    (given,) = tokens.values()
    seen, state["longest"] = state.get("longest", []), [*state.get("longest", []), given.shape[1]]
    return nudged(forward(**tokens)) if seen[-2:] == [11, 1] else forward(**tokens)


def kept_by_sum(state: dict[Any, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    (given,) = tokens.values()
    return state.setdefault((given.shape, int(given.sum())), forward(**tokens))


def kept_by_first_tokens(state: dict[Any, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    (given,) = tokens.values()
    return state.setdefault((given.shape, given[:, 0].tobytes()), forward(**tokens))


def raises_later(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
    if state["calls"] > 50:
        raise RuntimeError("out of slots")
    return forward(**tokens)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "wrong",
    [
        from_the_sixth_call_on,
        in_one_call_of_twenty,
        the_answer_of_an_earlier_input,
        after_a_longer_input,
        kept_by_sum,
        kept_by_first_tokens,
        raises_later,
    ],
)
def test_a_forward_pass_that_depends_on_earlier_calls_diverges(wrong: Callable[..., Any]) -> None:
    assert_history(checked(wrong), "logits")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("offer", ["loss_and_gradients", "train", "generate", "step"])
def test_a_forward_pass_that_another_call_changes_diverges(offer: str) -> None:
    def wrong(state: dict[str, Any], forward: Callable[..., Any], **tokens: Any) -> Any:
        return nudged(forward(**tokens)) if state.get(offer) else forward(**tokens)

    assert_history(checked(wrong, "forward", offer), "logits")


def adds_up(state: dict[str, Any], method: Callable[..., Any], *args: Any, **tokens: Any) -> Any:
    """Gradients are not zeroed between calls on the same tokens."""
    loss, gradients = method(*args, **tokens)
    key = next(iter(tokens.values())).tobytes()
    held = state.setdefault(key, {name: np.zeros_like(value) for name, value in gradients.items()})
    state[key] = {name: held[name] + value for name, value in gradients.items()}
    return loss, state[key]


def test_tokens_that_are_changed_in_place_are_refused() -> None:
    def wrong(state: dict[str, Any], forward: Callable[..., Any], tokens: np.ndarray) -> Any:
        logits = forward(tokens=tokens.copy())
        tokens[:, -1] = 0
        return logits

    with pytest.raises(PortError, match="it changed tokens in place, which is its caller's"):
        checked(wrong)


def test_targets_that_are_changed_in_place_diverge() -> None:
    def wrong(state: dict[str, Any], loss: Callable[..., Any], targets: np.ndarray, **tokens: Any) -> Any:
        found = loss(targets.copy(), **tokens)
        targets[targets == 0] = -100
        return found

    report = checked(wrong, "loss", "loss")
    assert report.verdict == "diverges"
    assert report.faults[0].where == "loss"


def test_a_loss_that_is_wrong_for_one_row_diverges() -> None:
    def wrong(state: dict[str, Any], loss: Callable[..., Any], targets: np.ndarray, **tokens: Any) -> Any:
        return loss(targets, **tokens) * (1.01 if len(targets) == 1 else 1.0)

    report = checked(wrong, "loss", "loss")
    assert report.verdict == "diverges"
    assert report.faults[0].where == "loss"


def test_gradients_that_add_up_diverge() -> None:
    (fault,) = checked(adds_up, "loss_and_gradients", "loss_and_gradients").faults
    assert fault.where.startswith("gradient")
    assert fault.causes[0].mistake == "history"


def test_a_generation_that_goes_on_where_it_ended_diverges() -> None:
    def wrong(state: dict[str, Any], method: Callable[..., Any], prompt: Any, steps: int, **named: Any) -> Any:
        tokens = np.array(method(prompt, steps, **named))
        if state.setdefault(str(steps), 0) and tokens.shape[1] > 3:
            tokens[:, -1] = (tokens[:, -1] + 1) % 20
        state[str(steps)] += 1
        return tokens

    report = checked(wrong, "generate", "generate")
    assert report.verdict == "diverges"
    assert report.faults[0].where.startswith("generate")


def test_a_right_history_bounds_the_rate_of_wrong_calls() -> None:
    coverage = checked(lambda state, forward, **tokens: forward(**tokens)).coverage
    assert coverage.calls == 120
    assert 40 <= 1 / coverage.rate <= 41


def test_a_model_with_two_end_tokens_is_built_for_each() -> None:
    """T5's requests for generation share their parameters, and end with different tokens."""
    key, probe = next(iter(probes_of(CASES["t5"], "t5").items()))
    port = BuiltPort(torch_port.build, torch_port.build(probe.config, dict(probe.parameters)))
    assert not compare_capability(GENERATION, port, ForwardPass({key: probe}, {}, "float32")).faults
