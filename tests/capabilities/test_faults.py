"""Test the causes that the checker names for wrong generation, steps, losses and training. The pool `independent`
measures how often the causes are right."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.pool.port import Offering
from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity_conformance.capabilities.capability import BuiltPort, Capability, ForwardPass, Way
from transparity_conformance.capabilities.decoding.generation import BEAMS, GENERATION
from transparity_conformance.capabilities.decoding.steps import STEPS
from transparity_conformance.capabilities.faults import (
    CACHE_FAULTS,
    FAULTS,
    OPTIMIZER_FAULTS,
    Edited,
    SimulatedFault,
    edited,
)
from transparity_conformance.capabilities.learning.loss import LOSS
from transparity_conformance.capabilities.learning.training import TRAINING, training_requests
from transparity_conformance.capabilities.requests import simulated
from transparity_conformance.capabilities.table import compare_capability
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, probes_of, sees_something
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.report import CapabilityResult
from transparity_conformance.running.process.running import run
from transparity_numpy.decoding.beams import beam_search
from transparity_numpy.decoding.generation import generate
from transparity_numpy.port import build as numpy_build
from transparity_numpy.training.optimization import train
from transparity_pytorch.port import build as pytorch_build

Arrays = dict[str, np.ndarray]
Simulate = Callable[..., Any]
Build = Callable[[TransformerConfig, Arrays], Any]

TRAINED = dataclasses.replace(preset("notes-lm"), qkv_bias=True)
"""A configuration with key biases, whose gradients are 0; parameters with zero gradients must not hide a fault."""

CONFIGS = {name: preset(name).resized() for name in PRESETS} | {"trained": TRAINED}


def offering(make: Callable[[TransformerConfig, Arrays, Any], dict[str, Any]], backend: Any = numpy_build) -> Build:
    def build(config: TransformerConfig, parameters: Arrays) -> Offering:
        forward = backend(config, parameters, dtype="float32")
        return Offering(forward, **make(config, parameters, forward))

    return build


def with_loss(loss: Simulate) -> Build:
    return offering(
        lambda config, _, forward: {
            "loss": lambda targets, **tokens: loss(forward.logits(**tokens), targets, config.pad_id)
        }
    )


def generating(simulate: Simulate, *, greedy_too: bool = False) -> Build:
    """Return a port that samples with `simulate`; with `greedy_too`, its greedy decoding uses `simulate` too."""

    def make(config: TransformerConfig, parameters: Arrays, forward: Any) -> dict[str, Any]:
        def given(
            prompt: np.ndarray,
            steps: int,
            source: np.ndarray | None = None,
            uniforms: np.ndarray | None = None,
            sampling: Any = None,
            lengths: np.ndarray | None = None,
        ) -> np.ndarray:
            chosen = simulate if greedy_too or uniforms is not None or lengths is not None else generate
            named: dict[str, Any] = {"uniforms": uniforms, "sampling": sampling, "lengths": lengths}
            return chosen(config, parameters, prompt, steps, source=source, **named)

        def greedy(prompt: np.ndarray, steps: int, source: np.ndarray | None = None) -> np.ndarray:
            return given(prompt, steps, source)

        return {"generate": greedy if greedy_too else given}

    return offering(make)


def learning(how: Simulate) -> Build:
    def make(config: TransformerConfig, parameters: Arrays, forward: Any) -> dict[str, Any]:
        given = {name: value.astype(np.float32) for name, value in parameters.items()}
        return {"train": lambda batches, training: how(config, given, batches, training)}

    return offering(make)


def first_probe(name: str) -> Probe:
    return probes_of(CONFIGS[name], name if name in PRESETS else "config")["mixed"]


def found_in(row: Capability, build: Build, name: str, dtype: str = "float32") -> CapabilityResult:
    probe = first_probe(name)
    port = build(probe.config, probe.parameters)
    logits = {"mixed": run(port, probe, logits_only=True)["logits"]} if row is LOSS else {}
    return compare_capability(row, BuiltPort(build, port), ForwardPass({"mixed": probe}, logits, dtype))


def test_every_edit_has_one_place_in_the_reference() -> None:
    faults = [how for name, row in FAULTS.items() if name not in ("sharding", "micro-batches") for how in row]
    assert all(isinstance(how.simulate, Edited) and how.simulate.edits and how.simulate.run for how in faults)
    with pytest.raises(ValueError, match="contain 'cross entropy' 0 times; expected once"):
        edited((("cross entropy", ""),), "training.loss.cross_entropy")
    with pytest.raises(ValueError, match="2 times; expected once"):
        edited((("config.filling_id", ""),), "decoding.generation.generate")


def acts(fault: SimulatedFault, way: Way, request: Any) -> bool:
    if way in BEAMS.ways:
        found, expected = simulated(fault.simulate, request), simulated(beam_search, request)
        return not all(map(np.array_equal, found, expected))
    return not np.array_equal(simulated(fault.simulate, request), simulated(generate, request))


def test_every_known_fault_of_generation_changes_an_answer() -> None:
    passes = [ForwardPass({"mixed": first_probe(name)}, {}, "float32") for name in ("notes-lm", "translation")]
    unseen: dict[SimulatedFault, bool] = {}
    for way in (*GENERATION.ways, *BEAMS.ways):
        requests = [request for each in passes for request in way.all_requests(each).values()]
        for fault in way.faults:
            unseen[fault] = unseen.get(fault, True) and not any(acts(fault, way, request) for request in requests)
    assert [fault.says for fault, is_unseen in unseen.items() if is_unseen] == []


def test_every_known_fault_of_a_cache_changes_the_logits() -> None:
    probes = [first_probe(name) for name in PRESETS if CONFIGS[name].mask_is_exact]
    probes += [
        probes_of(example_config(name), "config")["mixed"] for name in ("llama", "mistral", "qwen3_next", "mamba2")
    ]
    unseen = dict.fromkeys(CACHE_FAULTS, True)
    for probe in probes:
        length = probe.inputs[probe.config.input_names[-1]].shape[1]
        where, expected = sees_something(probe.config, probe.inputs), probe.oracle.expected["logits"]
        for fault in [fault for fault, is_unseen in unseen.items() if is_unseen]:
            logits = fault.simulate(probe.config, probe.exact, probe.inputs, (2, *(1,) * (length - 2)))
            unseen[fault] = bool(gap(logits[where], expected[where]) <= probe.budget("float32"))
    assert [fault.says for fault, is_unseen in unseen.items() if is_unseen] == []


def test_every_fault_of_an_optimizer_shows_in_a_model_with_small_gradients() -> None:
    def shows(fault: SimulatedFault) -> bool:
        for request in training_requests(CASES["qwen"]).values():
            right, wrong = request.oracle(), request.oracle(fault).expected
            if any(gap(wrong[name], each) > right.budget(name, "float32") for name, each in right.expected.items()):
                return True
        return False

    assert [fault.says for fault in OPTIMIZER_FAULTS if not shows(fault)] == []


UNKNOWN: dict[str, tuple[Capability, Build, str, str]] = {
    "loss": (LOSS, with_loss(lambda logits, targets, pad_id: logits.mean()), "translation", "loss"),
    "training": (
        TRAINING,
        learning(lambda *given: (train(*given)[0], {n: x * np.float32(1.001) for n, x in train(*given)[1].items()})),
        "trained",
        "train",
    ),
    "a second best token": (
        GENERATION,
        generating(lambda *given, **named: another_token(generate(*given, **named)), greedy_too=True),
        "notes-lm",
        "generate",
    ),
}


def another_token(tokens: np.ndarray) -> np.ndarray:
    tokens[-1:, 5:6] = (tokens[-1:, 5:6] + 1) % CONFIGS["notes-lm"].vocab_size
    return tokens


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_nobody_knows_has_no_name(name: str) -> None:
    row, build, config, claim = UNKNOWN[name]
    (fault,) = found_in(row, build, config).faults
    assert (fault.where, fault.causes) == (claim, ())


def other_of(answer: Any) -> Callable[..., Any]:
    return lambda *given, **named: answer


def changed(method: str, change: Callable[..., Any]) -> Build:
    return offering(
        lambda config, parameters, forward: {
            method: lambda *given, **named: change(getattr(forward, method)(*given, **named))
        },
        pytorch_build,
    )


FORMS: list[tuple[Capability, str, Build, str]] = [
    (LOSS, "loss", with_loss(other_of({"loss": 1.0})), ""),
    (GENERATION, "generate", changed("generate", other_of(None)), ""),
    (GENERATION, "generate", changed("generate", lambda tokens: tokens.astype(float)), "expected integers"),
    (GENERATION, "generate", changed("generate", lambda tokens: tokens[0]), "integers (batch, length)"),
    *(
        (BEAMS, "beam_search", changed("beam_search", change), "TypeError")
        for change in (lambda found: found[0], lambda found: (found[0], found[1][:, None]), other_of((1.0, 2.0)))
    ),
    (STEPS, "step", offering(lambda *_: {"step": lambda tokens, cache, source=None: tokens}), "TypeError"),
    (STEPS, "step", offering(lambda *_: {"step": lambda tokens: 1}), "TypeError"),
    (
        STEPS,
        "step",
        offering(lambda *_: {"step": lambda tokens, cache, source=None: (tokens, cache)}),
        "expected floats (8, 1, 31), one by one",
    ),
    (TRAINING, "train", learning(other_of(1)), "it raised TypeError"),
    (TRAINING, "train", learning(lambda *given: ([0.0], train(*given)[1])), "losses has the shape (1,); expected (3,)"),
    (TRAINING, "train", learning(lambda *given: (train(*given)[0], {})), "it raised TypeError: no decoder."),
]


def test_an_answer_in_the_wrong_form_diverges() -> None:
    for row, where, build, says in FORMS:
        fault = found_in(row, build, "notes-lm").faults[0]
        assert (fault.where, [cause.mistake for cause in fault.causes]) == (where, ["raises"]), (where, says)
        assert says in fault.causes[0].says
