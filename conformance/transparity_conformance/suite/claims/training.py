"""Claims about the loss, its gradients, and optimizer steps."""

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import lengths_of
from transparity.training import Training, dropout_masks
from transparity_conformance.oracle.budgets import EVERY, WIDE
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives, training_oracle
from transparity_conformance.oracle.oracle import Arrays, Oracle, function_oracle
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import ClaimEvidence
from transparity_conformance.suite.bench import Bench, ClaimRecord
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import function as reference_function


def loss_agrees(
    bench: Bench, case: str, logits: np.ndarray, targets: np.ndarray, expected: float, **named: Any
) -> ClaimEvidence:
    oracle = function_oracle("training.loss.cross_entropy", {"logits": logits, "targets": targets}, **named)
    result = bench.function("training.loss.cross_entropy")(logits, targets, **named)
    return bench.evidence(case).within("loss", result, expected, oracle.budget("result", bench.subject.dtype))


@claim(topic="loss", dtypes=EVERY, of_reference=True, harness=True)
def cross_entropy(bench: Bench) -> Iterator[ClaimEvidence]:
    """The loss is the mean of −log softmax over all targets except padding. Expected values come from scalar code."""
    logits = (3 * np.random.default_rng(0).normal(size=(3, 4, 7))).astype(np.float32)
    targets = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [0, 1, 0, 2]])
    for pad_id in (0, 4, None):
        surprises = [
            math.log(sum(math.exp(x) for x in row)) - row[token]
            for row, token in zip(logits.reshape(-1, 7).tolist(), targets.flatten().tolist(), strict=True)
            if token != pad_id
        ]
        expected = sum(surprises) / len(surprises)
        yield loss_agrees(bench, f"pad_id {pad_id}", logits, targets, expected, pad_id=pad_id)
    # Frameworks mark ignored targets by a number such as -100. Here, 100 is an ordinary token, which must count.
    logits, targets = np.zeros((1, 2, 128), np.float32), np.array([[100, 127]])
    logits[0, 0, 100] = 3
    expected = math.log(127 + math.exp(3)) / 2 - 3 / 2 + math.log(128) / 2
    yield loss_agrees(bench, "128 tokens", logits, targets, expected, pad_id=None)


@claim(topic="loss", dtypes=EVERY, of_reference=True, harness=True)
def label_smoothing(bench: Bench) -> Iterator[ClaimEvidence]:
    """The loss with label smoothing follows its formula, and ignores padding. Expected values come from scalar code."""
    logits = (3 * np.random.default_rng(1).normal(size=(3, 4, 7))).astype(np.float32)
    targets = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [0, 1, 0, 2]])
    for share in (0.1, 0.5, 1.0):
        surprises = []
        for row, token in zip(logits.reshape(-1, 7).tolist(), targets.flatten().tolist(), strict=True):
            aims = [share / 7 + (1 - share) * (other == token) for other in range(7)]
            whole = math.log(sum(math.exp(x) for x in row))
            surprises += [sum(aim * (whole - x) for aim, x in zip(aims, row, strict=True))] * (token != 0)
        case, expected = f"label_smoothing {share}", sum(surprises) / len(surprises)
        yield loss_agrees(bench, case, logits, targets, expected, pad_id=0, label_smoothing=share)


@claim(topic="loss", compiled=True, cases="fast_cases", probe="mixed")
def model_loss(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """The loss of a model agrees with the loss of the oracle's logits, with padding in the targets."""
    targets = np.roll(probe.inputs[probe.config.input_names[-1]], -1, axis=1)
    loss = reference_function("training.loss.cross_entropy")
    expected = loss(probe.oracle.expected["logits"], targets, probe.config.pad_id)
    # The loss is a mean of differences of logits, so its error is at most twice the error of the logits.
    budget = 2 * probe.oracle.budget("logits", bench.subject.dtype)
    result = bench.forward(probe.config, probe.parameters).loss(targets, **probe.inputs)
    yield record.within("loss", result, expected, budget)


_TRANSLATION, _NOTES = preset("translation").resized(), preset("notes-lm").resized()

HARD_TO_REACH: dict[str, TransformerConfig] = {
    "batch": dataclasses.replace(_TRANSLATION, norm="batch"),
    "batch-decoder": dataclasses.replace(_NOTES, norm="batch"),
    "unread": dataclasses.replace(_TRANSLATION, num_decoder_layers=0),
}
"""Models with batch norm in training, and a model without decoder layers, in which the encoder's parameters have zero
gradients."""


@functools.cache
def derivatives(case: str) -> tuple[Derivatives, Arrays]:
    config = (CASES | HARD_TO_REACH).get(case) or preset(case).resized()
    return derivatives_of(config, 2 if case == "notes-lm" else 1)


def derivatives_of(config: TransformerConfig, layers: int, rows: int | None = None) -> tuple[Derivatives, Arrays]:
    layers = min(config.num_decoder_layers, layers)
    config = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=layers)
    parameters, inputs = probe_parameters(config, 6), {name: x[:rows] for name, x in mixed_inputs(config).items()}
    return Derivatives(config, parameters, inputs, training=config.norm == "batch"), parameters


def gradients_agree(bench: Bench, case: str, ours: Derivatives, parameters: Arrays) -> Iterator[ClaimEvidence]:
    forward, tokens = bench.forward(ours.config, parameters), dict[str, Any](ours.inputs)
    _, gradients = forward.loss_and_gradients(ours.targets, training=ours.training, masks=ours.masks, **tokens)
    actual, record = ours.along(gradients), bench.evidence(case)
    yield record.exactly("parameters that have a gradient", sorted(gradients) == sorted(ours.expected), True)
    for name, expected in ours.expected.items():
        budget = ours.budget(name, bench.subject.dtype)
        yield record.within(name, actual.get(name, np.empty(0)), expected, budget)


OF_FAMILIES = tuple(case for case, config in CASES.items() if config.head == "logits")
FEW = (*PRESETS, *HARD_TO_REACH, "qwen", "gemma", "t5", "qwen3-next", "mamba2")
"""If a backend compiles models, only these cases are tested."""


@claim(
    topic="differentiation",
    dtypes=WIDE,
    quick=("float32",),
    cases=("notes-lm",),
    all_cases=[*PRESETS, *HARD_TO_REACH, *OF_FAMILIES],
    few=FEW,
    all_in=("float64",),
)
def model_gradients(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The gradient of the loss with respect to each parameter equals the complex-step derivative."""
    yield from gradients_agree(bench, case, *derivatives(case))


RATE = 0.3


@functools.cache
def dropped(case: str) -> tuple[Derivatives, Arrays]:
    """Return the derivatives of a preset's model with fixed dropout masks, and the model's parameters; each stack has
    one layer."""
    config = dataclasses.replace(preset(case).resized(num_encoder_layers=1, num_decoder_layers=1), dropout=RATE)
    parameters, inputs = probe_parameters(config, 8), mixed_inputs(config)
    batch, lengths = len(inputs[config.input_names[0]]), lengths_of(config, inputs)
    masks = dropout_masks(config, np.random.default_rng(9), batch, **lengths)
    return Derivatives(config, parameters, inputs, masks=masks), parameters


@claim(topic="dropout", dtypes=("float32",), cases=("pre-norm",), all_cases=PRESETS, all_in=("float64",))
def gradients_with_shared_masks(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """With given dropout masks, the gradients of the loss equal the complex-step derivatives."""
    yield from gradients_agree(bench, case, *dropped(case))


STEPS = 10

# Only some gradient norms exceed `max_norm`. `eps` is large enough to have an effect.
TRAININGS = {
    "sgd": Training("sgd", learning_rate=0.1),
    "sgd with momentum": Training("sgd", learning_rate=0.05, momentum=0.9),
    "adam": Training("adam", learning_rate=0.01, eps=1e-5),
    "adam, warmed up": Training("adam", learning_rate=0.05, warmup_steps=4),
    "adamw": Training("adamw", learning_rate=0.01, weight_decay=0.1),
    "adamw, clipped and warmed up": Training(
        "adamw", learning_rate=0.05, eps=1e-5, weight_decay=0.1, max_norm=1.2, warmup_steps=4
    ),
}

# Use a tiny model, because the reference needs a forward pass for each derivative.
CONFIG = preset("notes-lm").resized(
    embed_dim=4, num_heads=2, feed_forward_dim=2, num_decoder_layers=1, target_vocab_size=6, max_length=4
)

TRAINED = {name: (CONFIG, training) for name, training in TRAININGS.items()}
TRAINED["sgd, normalized by the batch"] = (dataclasses.replace(CONFIG, norm="batch"), TRAININGS["sgd"])

RECURRENCES = CONFIG.with_sizes(
    num_decoder_layers=2,
    layer_types=("delta", "state"),
    layer_overrides={"delta": {"mixer": "gated-delta"}, "state": {"mixer": "state-space"}},
    recurrent_heads=4,
    recurrent_key_heads=2,
    recurrent_key_dim=2,
    recurrent_value_dim=2,
    convolution_width=2,
)
TRAINED["adamw with recurrent layers"] = (RECURRENCES, TRAININGS["adamw"])


@functools.cache
def batches(config: TransformerConfig) -> tuple[Arrays, ...]:
    drawn = np.random.default_rng(3).integers(0, config.vocab_size, (STEPS, 3, 5))
    return tuple({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]} for tokens in drawn)


@functools.cache
def oracle_of(case: str) -> Oracle:
    config, training = TRAINED[case]
    return training_oracle(config, probe_parameters(config, 6), batches(config), training)


@claim(
    topic="optimization",
    dtypes=WIDE,
    quick=("float32",),
    cases=("adamw, clipped and warmed up",),
    all_cases=TRAINED,
    all_in=WIDE,
)
def ten_steps(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """Ten optimizer steps have the same losses and lead to the same parameters as ten steps of the reference."""
    (config, training), oracle = TRAINED[case], oracle_of(case)
    record = bench.evidence(case)
    model = bench.forward(config, probe_parameters(config, 6))
    losses, parameters = model.train(batches(config), training)
    yield from training_agrees(record, oracle, losses, parameters)


def training_agrees(record: ClaimRecord, oracle: Oracle, losses: Any, parameters: Arrays) -> Iterator[ClaimEvidence]:
    yield record.exactly("every parameter", sorted([*parameters, "losses"]) == sorted(oracle.expected), True)
    for where, actual in {"losses": np.array(losses), **parameters}.items():
        yield record.oracle(oracle, where, actual)
