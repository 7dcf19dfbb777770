"""Capabilities of a port: a wrong loss and a wrong gradient are found, placed and named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity_conformance import check
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.cache import CACHE_FAULTS
from transparity_conformance.capabilities.faults.generation import GREEDY_FAULTS, simulate_generation
from transparity_conformance.capabilities.faults.loss import LOSS_FAULTS
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.report import Report
from transparity_numpy.port import build as numpy_build
from transparity_numpy.training.loss import cross_entropy
from transparity_pytorch.port import build as pytorch_build

Gradients = dict[str, np.ndarray]
MISSING = "the port does not offer it"


def assert_raises(where: str, report: Report) -> None:
    """What is offered and fails diverges, with that as its cause."""
    (fault,) = report.faults
    assert (report.verdict, report.exit_code, fault.where) == ("diverges", 1, where)
    assert [cause.mistake for cause in fault.causes] == ["raises"]


class Offering:
    """A right forward pass that offers something else besides."""

    def __init__(self, forward: Callable[..., Any], **offers: Any) -> None:
        self.forward = forward
        vars(self).update(offers)

    def __call__(self, **tokens: Any) -> Any:
        return self.forward(**tokens)


def with_loss(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A port whose `forward.loss` computes `loss` of its logits in float32."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = numpy_build(config, parameters, dtype="float32")

        def said(targets: np.ndarray, **tokens: np.ndarray) -> Any:
            return loss(forward.logits(**tokens), targets, config.pad_id)

        return Offering(forward, loss=said)

    return build


def with_gradients(change: Callable[[float, Gradients], Any]) -> Callable[..., Any]:
    """A port whose gradients are changed on their way out."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = pytorch_build(config, parameters)

        def said(targets: np.ndarray, **tokens: Any) -> Any:
            return change(*forward.loss_and_gradients(targets, **tokens))

        return Offering(forward, loss_and_gradients=said)

    return build


@pytest.mark.sampled(2)
@pytest.mark.parametrize("preset", ["notes-lm", "translation"])
def test_our_own_loss_and_gradients_agree(preset: str) -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = pytorch_build(config, parameters)
        return Offering(forward, loss=forward.loss, loss_and_gradients=forward.loss_and_gradients)

    report = check(build, preset=preset)
    assert report.verdict == "agrees"
    held = {claim.id: claim.verdict for claim in report.claims}
    assert held["loss"] == held["loss_and_gradients"] == held["gradients"] == "agrees"
    assert not any(MISSING in says for says in report.not_compared if says.startswith("loss"))


@pytest.mark.sampled(14)
@pytest.mark.parametrize("mistake", LOSS_FAULTS, ids=lambda mistake: mistake.says)  # varies first, so all are made
@pytest.mark.parametrize("preset", ["translation", "notes-lm"])
def test_a_wrong_loss_is_named(preset: str, mistake: SimulatedFault) -> None:
    report = check(with_loss(mistake.simulate), preset=preset)
    assert (report.verdict, report.first_divergence) == ("diverges", "loss")
    (fault,) = report.faults
    assert [cause.says for cause in fault.causes] == [mistake.says]
    assert fault.causes[0].explained > 0.999
    assert mistake.says in sentence(report)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("loss", "cause", "value", "right"),
    [
        (lambda *given: 3.5 * cross_entropy(*given), "loss-scale", 3.5, 1.0),
        (lambda logits, targets, pad_id: cross_entropy(logits, targets, pad_id, 0.1), "loss-smoothing", 0.1, 0.0),
    ],
)
def test_a_number_in_a_loss_is_fitted(loss: Callable[..., Any], cause: str, value: float, right: float) -> None:
    report = check(with_loss(loss), preset="translation")
    (fault,) = report.faults
    assert [found.mistake for found in fault.causes] == [cause]
    fitted = fault.causes[0].value
    assert fitted is not None
    slope = fault.error / abs(value - right)  # of the loss, by the number
    assert abs(fitted - value) * slope <= max(1.0, value) * fault.budget


def test_a_loss_beside_logits_of_another_shape_is_not_compared() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = numpy_build(config, parameters, dtype="float32")
        return Offering(lambda **tokens: forward.logits(**tokens)[:, :-1], loss=lambda targets, **tokens: 1.0)

    report = check(build, preset="notes-lm")
    assert report.verdict == "diverges"
    assert any(says.startswith("loss: no probe") for says in report.not_compared)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", [numpy_build, pytorch_build], ids=["numpy", "pytorch"])
def test_a_head_without_logits_has_no_loss_to_compare(build: Callable[..., Any]) -> None:
    report = check(lambda config, parameters: build(config, parameters, dtype="float32"), config=CASES["bert"])
    assert report.verdict == "agrees"
    without = [says.partition(":")[0] for says in report.not_compared if "'pooled', which has no loss" in says]
    assert set(without) >= {"loss", "train"}
    assert not [says for says in report.not_compared if "raised" in says]


def test_a_wrong_loss_is_named_with_given_parameters_too() -> None:
    config = CASES["bloom"]
    given: dict[str, Any] = {"config": config, "parameters": probe_parameters(config, 7)}
    assert check(with_loss(cross_entropy), **given).verdict == "agrees"
    in_bits = next(fault for fault in LOSS_FAULTS if fault.id == "loss-base")
    (fault,) = check(with_loss(in_bits.simulate), **given).faults
    assert (fault.where, fault.causes[0].mistake) == ("loss", "loss-base")


def test_a_loss_that_nobody_knows_has_no_name() -> None:
    report = check(with_loss(lambda logits, targets, pad_id: logits.mean()), preset="translation")
    (fault,) = report.faults
    assert (report.verdict, fault.where, fault.causes) == ("diverges", "loss", ())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.0), (1e200, 1e200), (-1e4, 1e4)], ids=str)
def test_a_loss_beside_logits_of_any_size_is_judged(low: float, high: float) -> None:
    """All alike, too large for float32, or so sure of every target that the loss is 0."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        def logits(tokens: np.ndarray) -> np.ndarray:
            aimed_at = np.roll(tokens, -1, axis=1)[..., None] == np.arange(config.vocab_size)
            return np.where(aimed_at, high, low)

        return Offering(logits, loss=lambda targets, **tokens: float(targets.size))

    # no search for what makes such logits
    report = check(build, preset="notes-lm", budget=0)
    assert (report.verdict, report.faults[-1].where, report.faults[-1].causes) == ("diverges", "loss", ())


def test_a_right_loss_of_wrong_logits_is_no_fault() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = port_with("attention-scale-twice")(config, parameters)

        def loss(targets: np.ndarray, **tokens: np.ndarray) -> Any:
            logits = forward(**tokens)["logits"].numpy().astype(np.float64)
            shifted = logits - logits.max(-1, keepdims=True)
            surprises = np.log(np.exp(shifted).sum(-1)) - np.take_along_axis(shifted, targets[..., None], -1)[..., 0]
            return surprises[targets != config.pad_id].mean()

        return Offering(forward, loss=loss)

    report = check(build, preset="translation")
    assert report.verdict == "diverges"
    assert "loss" not in [fault.where for fault in report.faults]
    assert {claim.id: claim.verdict for claim in report.claims}["loss"] == "agrees"


def with_generation(simulate: Callable[..., np.ndarray]) -> Callable[..., Any]:
    """A port whose `forward.generate` generates so."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        def said(prompt: np.ndarray, max_new_tokens: int, source: np.ndarray | None = None) -> np.ndarray:
            return simulate(config, parameters, prompt, max_new_tokens, source=source)

        return Offering(numpy_build(config, parameters, dtype="float32"), generate=said)

    return build


@pytest.mark.sampled(49)
@pytest.mark.parametrize(
    ("preset", "how"),
    [
        pytest.param(preset, how, id=f"{preset}: {how.says}")
        for preset in PRESETS
        for how in GREEDY_FAULTS
        if PRESETS[preset].config.eos_id is not None or how.id != "generation-stop"  # where nothing ends, all go on
    ],
)
def test_a_wrong_generation_is_named(preset: str, how: SimulatedFault) -> None:
    report = check(with_generation(how.simulate), preset=preset)
    (fault,) = report.faults
    assert (report.verdict, report.first_divergence, fault.where) == ("diverges", "generate", "generate")
    assert [cause.says for cause in fault.causes] == [how.says]
    assert fault.indistinguishable == ()


@pytest.mark.sampled(6)
@pytest.mark.parametrize("preset", PRESETS)
def test_a_right_generation_agrees(preset: str) -> None:
    report = check(with_generation(simulate_generation), preset=preset)
    assert report.verdict == "agrees"
    assert {claim.id: claim.verdict for claim in report.claims}["generate"] == "agrees"


def test_a_second_best_token_has_no_name() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = numpy_build(config, parameters, dtype="float32")

        def said(prompt: np.ndarray, max_new_tokens: int, source: np.ndarray | None = None) -> np.ndarray:
            tokens = simulate_generation(config, parameters, prompt, max_new_tokens, source=source)
            tokens[-1:, 5:6] = (tokens[-1:, 5:6] + 1) % config.vocab_size
            return tokens

        return Offering(forward, generate=said)

    report = check(build, preset="notes-lm")
    (fault,) = report.faults
    assert (fault.where, fault.causes) == ("generate", ())
    assert {claim.id: claim.where for claim in report.claims}["generate"].startswith("token 5")


@pytest.mark.parametrize(
    "answer",
    [
        lambda tokens: tokens.astype(float),
        lambda tokens: tokens[0],
        lambda tokens: None,
    ],
)
def test_tokens_of_the_wrong_form_diverge(answer: Callable[..., Any]) -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        return Offering(numpy_build(config, parameters, dtype="float32"), generate=lambda prompt, _: answer(prompt))

    assert_raises("generate", check(build, preset="notes-lm"))


def scaled(loss: float, gradients: Gradients) -> Any:
    return loss, {name: -gradient for name, gradient in gradients.items()}


def cut(loss: float, gradients: Gradients) -> Any:
    return loss, {name: value * ("cross_attention.key" not in name) for name, value in gradients.items()}


def left_out(loss: float, gradients: Gradients) -> Any:
    return loss, {name: value for name, value in gradients.items() if not name.startswith("encoder")}


def one_wrong_number(loss: float, gradients: Gradients) -> Any:
    changed = gradients["encoder.layers.0.feed_forward.up.weight"].copy()
    changed[2, 1] += 1e-3
    return loss, gradients | {"encoder.layers.0.feed_forward.up.weight": changed}


def not_a_number(loss: float, gradients: Gradients) -> Any:
    return loss, {name: gradient * np.nan for name, gradient in gradients.items()}


def transposed(loss: float, gradients: Gradients) -> Any:
    return loss, {name: gradient.T for name, gradient in gradients.items()}


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("change", "where", "cause"),
    [
        (scaled, "head.bias", "gradient-scale"),
        (cut, "decoder.layers.1.cross_attention.key.weight", "gradient-missing"),
        (left_out, "encoder.layers.1.feed_forward_norm.bias", "gradient-missing"),
        (one_wrong_number, "encoder.layers.0.feed_forward.up.weight", None),
        (not_a_number, "head.bias", None),
        (transposed, "head.weight", None),
    ],
)
def test_a_wrong_gradient_is_placed(change: Callable[..., Any], where: str, cause: str | None) -> None:
    report = check(with_gradients(change), preset="translation")
    (fault,) = report.faults
    assert (report.verdict, fault.where) == ("diverges", f"gradient.{where}")
    assert [found.mistake for found in fault.causes] == [cause] * (cause is not None)


def test_the_gradients_of_a_wrong_forward_pass_are_not_compared() -> None:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = port_with("attention-scale-twice")(config, parameters)
        return Offering(forward, loss_and_gradients=lambda targets, **tokens: (0.0, {}))

    report = check(build, preset="translation")
    assert any(says.startswith("loss_and_gradients: the forward pass diverges") for says in report.not_compared)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("answer", [None, "a word", 1.0, (1.0, 2.0), {"loss": 1.0}], ids=repr)
def test_an_offer_in_the_wrong_form_diverges(answer: Any) -> None:
    assert_raises("gradients", check(with_gradients(lambda loss, gradients: answer), preset="notes-lm"))
    assert_raises("loss", check(with_loss(lambda *_: {"loss": 1.0}), preset="notes-lm"))


def with_steps(how: SimulatedFault) -> Callable[..., Any]:
    """A port whose `forward.step` decodes so; its cache is what it was shown."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = numpy_build(config, parameters, dtype="float32")

        def said(tokens: np.ndarray, cache: Any, source: np.ndarray | None = None) -> tuple[np.ndarray, Any]:
            shown, sizes = ({"source": source} if source is not None else {}, ()) if cache is None else cache
            name = config.input_names[-1]
            shown = shown | {name: np.concatenate([*([shown[name]] if name in shown else []), tokens], 1)}
            sizes = (*sizes, tokens.shape[1])
            logits = how.simulate(config, forward.parameters, shown, sizes)
            return logits[:, -tokens.shape[1] :].astype(np.float32), (shown, sizes)

        return Offering(forward, step=said)

    return build


OF_ROTATIONS = (
    "queries begin at position 0 again with every step, and keys do not",
    "keys are kept before they are rotated",
)


OF_STATES = tuple(how.says for how in CACHE_FAULTS if how.id == "cache-state")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("family", "says"),
    [
        *(("llama", says) for says in OF_ROTATIONS),
        *(("qwen3_next", says) for says in OF_STATES),
        *(("mamba2", says) for says in OF_STATES[:1]),
    ],
)
def test_a_wrong_rotation_or_state_in_a_cache_is_named(family: str, says: str) -> None:
    how = next(how for how in CACHE_FAULTS if how.says == says)
    report = check(with_steps(how), config=example_config(family), logits_only=True)
    (fault,) = report.faults
    assert (fault.where, [cause.says for cause in fault.causes]) == ("step", [says])


def cache_faults(presets: Iterable[str]) -> list[Any]:
    """Every fault of a cache with every preset in which it is one: not where padding is visible anyway."""
    first = {how.says: how for how in reversed(CACHE_FAULTS)}.values()
    pairs = [(how, preset) for how in first for preset in presets]
    harmless = {
        "padding in the cache is visible": [name for name in presets if PRESETS[name].config.target_mask == "causal"],
        "padding in the source is visible": [name for name in presets if not PRESETS[name].config.has_encoder],
        **{says: [name for name in presets if PRESETS[name].config.positions != "rotary"] for says in OF_ROTATIONS},
        **{says: [name for name in presets if not PRESETS[name].config.is_recurrent] for says in OF_STATES},
    }
    assert set(harmless) <= {how.says for how in CACHE_FAULTS}
    acting = [(how, preset) for how, preset in pairs if preset not in harmless.get(how.says, [])]
    return [pytest.param(how, preset, id=f"{how.says}-{preset}") for how, preset in acting]


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("how", "preset"), cache_faults([name for name in PRESETS if name != "walkthrough"]))
def test_a_wrong_cache_is_named(how: SimulatedFault, preset: str) -> None:
    report = check(with_steps(how), preset=preset, logits_only=True)
    assert (report.verdict, report.first_divergence) == ("diverges", "step")
    (fault,) = report.faults
    assert [cause.says for cause in fault.causes] == [how.says]
    assert how.says in sentence(report)


def with_steps_alone(whole: Callable[..., Any]) -> Callable[..., Any]:
    """A port of which nothing but the cache is compared beside the forward pass."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Offering:
        forward = whole(config, parameters)
        return Offering(forward, step=forward.step)

    return build


@pytest.mark.long
def test_a_right_cache_agrees_and_a_mask_that_hides_nothing_has_none() -> None:
    for preset, said in (("notes-lm", "agrees"), ("shared-heads", "agrees"), ("walkthrough", None)):
        for whole in (numpy_build, pytorch_build):
            report = check(with_steps_alone(whole), preset=preset, logits_only=True)
            assert report.verdict == "agrees"
            assert {claim.id: claim.verdict for claim in report.claims}.get("step") == said
    assert any(says.startswith("step: this mask hides nothing") for says in report.not_compared)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("step", "says"),
    [
        (lambda tokens, cache, source=None: tokens, "it raised TypeError"),
        (lambda tokens, cache, source=None: (tokens, cache), "expected (8, 1, 31) floats, one by one"),
        (lambda tokens: 1, "it raised TypeError"),
    ],
)
def test_a_step_in_the_wrong_form_diverges(step: Callable[..., Any], says: str) -> None:
    report = check(
        lambda config, parameters: Offering(numpy_build(config, parameters, dtype="float32"), step=step),
        preset="translation",
        logits_only=True,
    )
    assert_raises("step", report)
    assert says in report.faults[0].causes[0].says
