"""A port's optimizers, held to the reference: some steps of a tiny model from the same weights, on the same batches."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.training import Training
from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_conformance.capabilities.faults.optimization import OPTIMIZER_FAULTS
from transparity_conformance.capabilities.generation import Build
from transparity_conformance.oracle.oracle import Arrays, Oracle, training_oracle
from transparity_conformance.oracle.probes import further_inputs, probe_parameters
from transparity_conformance.report.capability_result import CapabilityResult, alternatives
from transparity_conformance.report.comparison import as_numbers, gap, share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence

STEPS, ROWS = 3, 3

NEAREST = 3
"""Where no mistake explains all within the budgets of the right training, so many are tried by budgets of their own:
they may round by more, where steps are longer or what they are divided by is smaller."""

# In one the gradients are longer than `max_norm`, in the other they are not; `eps` is large enough to be missed.
TRAININGS = {
    "sgd with momentum, clipped": Training("sgd", learning_rate=0.05, momentum=0.9, max_norm=0.5),
    "adamw, warmed up": Training(
        "adamw", learning_rate=0.1, eps=1e-3, weight_decay=0.1, max_norm=1000.0, warmup_steps=3
    ),
}


def tiny(config: TransformerConfig) -> TransformerConfig:
    """The same system with few numbers, for the reference differentiates by a forward pass for each."""
    sizes: dict[str, Any] = {"embed_dim": 4, "num_heads": 2, "feed_forward_dim": 2, "max_length": 4}
    sizes |= {"num_key_value_heads": 1 if config.key_value_heads < config.num_heads else None}
    sizes |= {"attention_head_dim": None, "rotary_dim": None}
    tokens = 1 + max(token for token in (config.pad_id, config.bos_id, config.eos_id, 3) if token is not None)
    for stack, has in (("encoder", config.has_encoder), ("decoder", config.has_decoder)):
        vocabulary = "source_vocab_size" if stack == "encoder" else "target_vocab_size"
        sizes |= {f"num_{stack}_layers": 1, vocabulary: max(6, tokens)} if has else {}
    return dataclasses.replace(config, **sizes)


@functools.cache
def batches(config: TransformerConfig) -> tuple[Arrays, ...]:
    """What every step is made from: targets are the tokens one further."""
    random = np.random.default_rng(3)
    made = []
    for _ in range(STEPS):
        batch: Arrays = {}
        for name in config.input_names:
            size = config.stack_vocab_size(config.input_stack(name))
            drawn = random.integers(0, size, (ROWS, config.max_length + 1))
            batch |= {name: drawn[:, :-1], "targets": drawn[:, 1:]}
        made.append(batch | further_inputs(config, batch, random))
    return tuple(made)


@functools.cache
def oracle_of(config: TransformerConfig, name: str, how: SimulatedFault | None = None) -> Oracle:
    """The losses and the parameters that come of a training, of the right one or of one with a mistake."""
    return training_oracle(
        config, probe_parameters(config, 6), batches(config), TRAININGS[name], how.simulate if how else None
    )


def compare_training(build: Build, config: TransformerConfig, dtype: str) -> CapabilityResult:
    """Ask the port, and judge. Raises whatever the port raises, and `TypeError` for what are no losses and
    parameters."""
    config = tiny(config)
    said = {name: _trained(build, config, training) for name, training in TRAININGS.items()}
    errors = {name: _off(said[name], oracle_of(config, name), dtype) for name in said}
    worst = max(errors, key=lambda name: share(*errors[name][:2]))
    error, budget, where = errors[worst]
    place = f"{where}, {worst}"
    if share(error, budget) <= 1:
        return CapabilityResult((ClaimResult("train", "agrees", error, budget, place),))
    explaining = _explaining(config, said, dtype)
    causes = []
    for how in explaining[:1]:
        left = _off(said[worst], oracle_of(config, worst, how), dtype)[0]
        causes.append(Cause(how.id, how.says, None, left, 1 - left / error))
    fault = Divergence("train", error, budget, tuple(causes), alternatives(explaining))
    return CapabilityResult((ClaimResult("train", "diverges", error, budget, place),), (fault,))


def _explaining(config: TransformerConfig, said: Mapping[str, Arrays], dtype: str) -> list[SimulatedFault]:
    def beyond(how: SimulatedFault) -> int:
        """How many tensors the port is further off the wrong training than budgets of the right one allow."""
        return sum(
            share(gap(said[name][what], expected), oracle_of(config, name).budget(what, dtype)) > 1
            for name in said
            for what, expected in oracle_of(config, name, how).expected.items()
        )

    left = {how: beyond(how) for how in OPTIMIZER_FAULTS}
    if explaining := [how for how in OPTIMIZER_FAULTS if not left[how]]:
        return explaining
    nearest = sorted(OPTIMIZER_FAULTS, key=lambda how: left[how])[:NEAREST]
    by_their_own = [
        how
        for how in nearest
        if all(share(*_off(said[name], oracle_of(config, name, how), dtype)[:2]) <= 1 for name in said)
    ]
    return by_their_own[:1]


def _off(said: Arrays, oracle: Oracle, dtype: str) -> tuple[float, float, str]:
    """The error that is the largest share of its budget, the budget, and of what it is."""
    off = [(gap(said[what], expected), oracle.budget(what, dtype), what) for what, expected in oracle.expected.items()]
    return max(off, key=lambda item: share(item[0], item[1]))


def _trained(build: Build, config: TransformerConfig, training: Training) -> Arrays:
    parameters = {name: value.copy() for name, value in probe_parameters(config, 6).items()}
    copied = [{name: tokens.astype(np.int64) for name, tokens in batch.items()} for batch in batches(config)]
    losses, became = build(config, parameters).train(copied, training)
    said = {str(name): as_numbers(value).astype(np.float64) for name, value in dict(became).items()}
    missing = [name for name in parameters if is_learned(name) and name not in said]
    if missing:
        raise TypeError(f"no {missing[0]} and {len(missing) - 1} more" if missing[1:] else f"no {missing[0]}")
    said["losses"] = np.array([float(as_numbers(loss).reshape(())) for loss in losses])
    for name, value in said.items():
        expected = (STEPS,) if name == "losses" else parameters[name].shape if name in parameters else value.shape
        if value.shape != expected:
            raise TypeError(f"{name} of the shape {value.shape}, expected {expected}")
    return said
