"""Optimization: some steps from the same weights on the same batches lead to the same place in every framework."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.training import Training
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.differentiation.gradients import training_oracle
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

STEPS = 10

# Some gradients are longer than `max_norm` and some are not; `eps` is large enough to be missed.
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

# The reference differentiates by a forward pass for each parameter, so there are few.
CONFIG = preset("notes-lm").resized(
    embed_dim=4, num_heads=2, feed_forward_dim=2, num_decoder_layers=1, target_vocab_size=6, max_length=4
)

CASES = {name: (CONFIG, training) for name, training in TRAININGS.items()}
CASES["sgd, normalised by the batch"] = (dataclasses.replace(CONFIG, norm="batch"), TRAININGS["sgd"])

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
CASES["adamw, of recurrences"] = (RECURRENCES, TRAININGS["adamw"])


@functools.cache
def batches(config: TransformerConfig) -> tuple[Arrays, ...]:
    random = np.random.default_rng(3)
    drawn = random.integers(0, config.vocab_size, (STEPS, 3, 5))
    return tuple({"tokens": tokens[:, :-1], "targets": tokens[:, 1:]} for tokens in drawn)


@functools.cache
def oracle_of(case: str) -> Oracle:
    config, training = CASES[case]
    return training_oracle(config, probe_parameters(config, 6), batches(config), training)


@claim(dtypes=WIDE, quick=("float32",), cases=("adamw, clipped and warmed up",), all_cases=CASES, all_in=WIDE)
def ten_steps(bench: Bench, cases: Iterable[str]) -> Iterator[Evidence]:
    """Ten steps of an optimizer have the losses, and end at the parameters, of the reference's steps."""
    for case in cases:
        (config, training), oracle = CASES[case], oracle_of(case)
        record = bench.evidence("optimization.ten_steps", case)
        model = bench.forward(config, probe_parameters(config, 6))
        losses, parameters = model.train(batches(config), training)
        yield record.exactly("every parameter", sorted([*parameters, "losses"]) == sorted(oracle.expected), True)
        for where, actual in {"losses": np.array(losses), **parameters}.items():
            yield record.oracle(oracle, where, actual)
