"""The norms, each by itself."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity.protocol import Module
from transparity.taps import Tap
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.oracle import Arrays, Oracle, each, function_oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters, scoped_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import module as reference_module

EMBED_DIM = 12
EPS = 1e-5


def drawn(seed: int, spread: float = 1.0, offset: float = 0.5) -> Arrays:
    """A batch (3, 5, 12) whose mean is not zero, with gains and biases."""
    random = np.random.default_rng(seed)
    x = offset * spread + spread * random.normal(size=(3, 5, EMBED_DIM))
    weight, bias = 1 + 0.3 * random.normal(size=EMBED_DIM), 0.3 * random.normal(size=EMBED_DIM)
    return {name: value.astype(np.float32) for name, value in (("x", x), ("weight", weight), ("bias", bias))}


def at_every_spread(bench: Bench, function: str) -> Iterator[Evidence]:
    """Compare `function` on activations next to which eps is negligible, comparable, and dominant."""
    for spread in (1.0, 1e-2, 1e-4, 30.0):
        arrays = drawn(0, spread)
        oracle = function_oracle(function, arrays, eps=EPS)
        result = bench.function(function)(*arrays.values(), eps=EPS)
        yield bench.evidence(f"spread {spread:g}").oracle(oracle, "result", result)


@claim(harness=True)
def layer(bench: Bench) -> Iterator[Evidence]:
    """LayerNorm divides by the variance over n, with eps inside the root."""
    yield from at_every_spread(bench, "normalization.layer_norm")


@claim(harness=True)
def layer_unbiased(bench: Bench) -> Iterator[Evidence]:
    """Document 003's norm divides by the deviation over n − 1, with eps outside the root."""
    yield from at_every_spread(bench, "normalization.layer_norm_unbiased")


@claim(harness=True)
def batch_evaluation(bench: Bench) -> Iterator[Evidence]:
    """BatchNorm in evaluation uses its running statistics."""
    for spread in (1.0, 1e-3):
        arrays = drawn(1) | {"mean": np.full(EMBED_DIM, 0.4, np.float32)}
        arrays["variance"] = np.linspace(spread**2, 2 * spread**2, EMBED_DIM).astype(np.float32)
        oracle = function_oracle("normalization.batch_norm", arrays, eps=EPS)
        result = bench.function("normalization.batch_norm")(*arrays.values(), eps=EPS)
        yield bench.evidence(f"spread {spread:g}").oracle(oracle, "result", result)


@claim(harness=True)
def batch_statistics(bench: Bench) -> Iterator[Evidence]:
    """Batch statistics are the mean and the variance over n of each feature, over batch and positions."""
    arrays = {"x": drawn(2)["x"]}
    oracle = function_oracle("normalization.batch_statistics", arrays)
    for name, value in each(bench.function("normalization.batch_statistics")(*arrays.values())):
        yield bench.evidence("drawn").oracle(oracle, name, value)


@claim(harness=True)
def batch_training(bench: Bench) -> Iterator[Evidence]:
    """BatchNorm in training normalises by the batch and updates its running statistics."""
    config = preset("translation").resized(embed_dim=EMBED_DIM)
    config = type(config)(**(config.as_dict() | {"norm": "batch"}))
    parameters = scoped_parameters(probe_parameters(config, 6), "encoder.layers.0.self_attention_norm")
    batches = {f"batch {index}": drawn(index, 1 + index)["x"] for index in range(4)}

    def run(arrays: Arrays, tap) -> None:  # type: ignore[no-untyped-def]
        dtype = arrays["weight"].dtype.name
        state = {name: arrays[name] for name in parameters}
        norm = reference_module("normalization.Norm", config, state, dtype=dtype)
        tap("before", norm(arrays["batch 0"]))
        norm.use_batch_statistics()
        for name in batches:
            tap(name, norm(arrays[name]))
            for statistic in ("running_mean", "running_var"):
                tap(f"{statistic} after {name}", norm.parameters()[statistic])

    oracle = Oracle(run, parameters | batches)
    norm = bench.module("normalization.Norm", config, parameters)
    record = bench.evidence("four batches")
    yield record.oracle(oracle, "before", norm(batches["batch 0"]))
    norm.use_batch_statistics()
    for name, batch in batches.items():
        yield record.oracle(oracle, name, norm(batch))
        for statistic in ("running_mean", "running_var"):
            yield record.oracle(oracle, f"{statistic} after {name}", norm.parameters()[statistic])


@claim(dtypes=WIDE, harness=True)
def model_in_training(bench: Bench) -> Iterator[Evidence]:
    """A whole model in training agrees at every tap, and in the running statistics after two batches."""
    for norm_position in ("pre", "post"):
        config = preset("translation").resized()
        changes = {"norm": "batch", "norm_position": norm_position, "final_norm": True, "memory_norm": True}
        changes["embedding_norm"] = norm_position == "pre"
        config = TransformerConfig(**(config.as_dict() | changes))
        parameters, batches = probe_parameters(config, 6), [mixed_inputs(config, seed) for seed in (0, 1)]
        oracle = Oracle(functools.partial(_train, config, batches), parameters)
        model = bench.module("transformer.Transformer", config, parameters)
        yield from bench.evidence(f"{norm_position}-norm").taps(oracle, dict(_trained(model, batches)))


def _train(config: TransformerConfig, batches: list[Arrays], parameters: Arrays, tap: Tap) -> None:
    dtype = next(iter(parameters.values())).dtype.name
    for name, value in _trained(reference_module("transformer.Transformer", config, parameters, dtype=dtype), batches):
        tap(name, value)


def _trained(model: Module, batches: list[Arrays]) -> Iterator[tuple[str, Any]]:
    """Return the taps of each batch in training, and the running statistics after each."""
    model.use_batch_statistics()
    for index, batch in enumerate(batches):
        taps: Arrays = {}
        tokens: dict[str, Any] = {**batch}
        yield f"logits of batch {index}", model(**tokens, taps=taps)
        yield from ((f"{name} of batch {index}", value) for name, value in taps.items())
        state = model.parameters()
        yield from ((f"{name} after batch {index}", state[name]) for name in state if "running" in name)
