"""Claims about single layers, feed-forward networks, norms and recurrences, on random activations."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.protocol import Module
from transparity.taps import Tap
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.oracle import Arrays, Oracle, function_oracle
from transparity_conformance.oracle.oracle import each as named_parts
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters, probes, scoped_parameters
from transparity_conformance.report.comparison import ClaimEvidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import module as reference_module
from transparity_numpy.mixers.gated_delta import gated_delta_rule
from transparity_numpy.mixers.state_space import state_space_rule

# These are the shapes of the probe `mixed`, for which frameworks have already compiled their operations.
BATCH, QUERIES, KEYS = 8, 7, 9


def module_oracle(
    name: str, config: TransformerConfig, parameters: Arrays, x: np.ndarray, **context: np.ndarray
) -> Oracle:
    """Return the oracle of a module of the reference that is called with `x` and the fields of `context`, such as
    masks.

    The oracle's values are the module's activations and its `result`."""

    def run(values: Arrays, tap: Tap) -> None:
        state, taps = {key: values[key] for key in parameters}, dict[str, Any]()
        module = reference_module(name, config, state, dtype=values["x"].dtype.name)
        named = {"context": {key: values[key] for key in context}} if context else {}
        result = module(values["x"], **named, taps=taps)
        for where, value in {**taps, "result": result}.items():
            tap(where, value)

    return Oracle(run, parameters | {"x": x} | context)


def part_agrees(bench: Bench, case: str, module: str, scope: str, context: Arrays) -> Iterator[ClaimEvidence]:
    """Compare the result and all activations of the module `scope` in the first layer of a case. The inputs are random
    activations, and the fields of `context`, such as masks."""
    probe = probes(case)["mixed"]
    stack = probe.config.input_stack(probe.config.input_names[-1]) if "Encoder" not in module else "encoder"
    parameters = scoped_parameters(probe.parameters, f"{stack}.layers.0.{scope}".rstrip("."))
    length = QUERIES if stack == "decoder" and probe.config.has_encoder else KEYS
    x = np.random.default_rng(1).normal(size=(BATCH, length, probe.config.embed_dim)).astype(np.float32)

    oracle = module_oracle(module, probe.config, parameters, x, **context)
    taps: Arrays = {}
    part = bench.module(module, probe.config, parameters)
    named: dict[str, Any] = {"context": context} if context else {}
    result, fast = part(x, **named, taps=taps), part(x, **named)
    record = bench.evidence(case)
    yield from record.taps(oracle, taps | {"result": result})
    yield record.oracle(oracle, "result by the fast path", fast, "result")


def _masks(queries: int, keys: int) -> tuple[np.ndarray, np.ndarray]:
    visible = np.ones((BATCH, 1, 1, queries), bool)
    visible[1, ..., -2:] = False
    memory = np.ones((BATCH, 1, 1, keys), bool)
    memory[0, ..., 1], memory[2] = False, False
    return visible & np.tri(queries, dtype=bool), memory


@claim(harness=True, cases=[case for case, entry in PRESETS.items() if entry.config.has_encoder])
def encoder_layer(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """A single encoder layer agrees with the reference."""
    _, padding = _masks(KEYS, KEYS)
    yield from part_agrees(bench, case, "layers.EncoderLayer", "", {"mask": padding})


@claim(harness=True, cases=PRESETS)
def decoder_layer(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """A single decoder layer agrees with the reference, with and without a memory."""
    config = probes(case)["mixed"].config
    causal, memory_mask = _masks(QUERIES if config.has_encoder else KEYS, KEYS)
    context = {"mask": causal}
    if config.has_encoder:
        memory = np.random.default_rng(2).normal(size=(BATCH, KEYS, config.embed_dim)).astype(np.float32)
        context |= {"memory": memory, "memory_mask": memory_mask}
    yield from part_agrees(bench, case, "layers.DecoderLayer", "", context)


@claim(topic="feed_forward", harness=True, cases=PRESETS)
def module(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The feed-forward module agrees with the reference on random activations."""
    yield from part_agrees(bench, case, "feed_forward.FeedForward", "feed_forward", {})


RULES = {"gated_delta_rule": gated_delta_rule, "state_space_rule": state_space_rule}

LENGTH, CUT = 131, 70
"""The number of positions, which are more than two chunks. The second call starts at `CUT`, inside a chunk."""

NAMES = ("query", "key", "value", "log_decay", "beta", "state")


def _drawn() -> Arrays:
    random = np.random.default_rng(3)
    query, key = (random.normal(size=(2, 3, LENGTH, 5)) for _ in range(2))
    unit = {name: x / np.linalg.norm(x, axis=-1, keepdims=True) for name, x in (("query", query), ("key", key))}
    numbers = random.normal(size=(2, 2, 3, LENGTH))
    found = unit | {"value": random.normal(size=(2, 3, LENGTH, 7)), "state": random.normal(size=(2, 3, 5, 7))}
    found |= {"log_decay": -np.exp(2 * numbers[0] - 2), "beta": 1 / (1 + np.exp(-numbers[1]))}
    return {name: found[name].astype(np.float32) for name in NAMES}


def _run(arrays: Arrays, tap: Tap) -> None:
    for name, rule in RULES.items():
        read, state = rule(*(arrays[name] for name in NAMES))
        tap(f"output of {name}", read)
        tap(f"state of {name}", state)


@claim(topic="recurrence", dtypes=("float32", "float64"), harness=True)
def steps(bench: Bench) -> Iterator[ClaimEvidence]:
    """Recurrences over several chunks agree with the reference's single steps, in one call and in two calls."""
    arrays = _drawn()
    oracle, record = Oracle(_run, arrays), bench.evidence(f"{LENGTH} positions")
    *given, begun = (arrays[name] for name in NAMES)
    for name in RULES:
        rule = bench.function(f"mixers.{name.removesuffix('_rule')}.{name}")
        read, state = rule(*given, begun)
        yield record.oracle(oracle, f"output of {name}", read)
        yield record.oracle(oracle, f"state of {name}", state)
        first, between = rule(*(x[:, :, :CUT] for x in given), begun)
        second, state = rule(*(x[:, :, CUT:] for x in given), np.asarray(between))
        whole = np.concatenate([np.asarray(first), np.asarray(second)], axis=2)
        yield record.oracle(oracle, f"output of {name} in two calls", whole, f"output of {name}")
        yield record.oracle(oracle, f"state of {name} after two calls", state, f"state of {name}")


EMBED_DIM = 12
EPS = 1e-5


def norm_inputs(seed: int, spread: float = 1.0) -> Arrays:
    random = np.random.default_rng(seed)
    x = 0.5 * spread + spread * random.normal(size=(3, 5, EMBED_DIM))
    weight, bias = 1 + 0.3 * random.normal(size=EMBED_DIM), 0.3 * random.normal(size=EMBED_DIM)
    return {name: value.astype(np.float32) for name, value in (("x", x), ("weight", weight), ("bias", bias))}


def at_every_spread(bench: Bench, function: str) -> Iterator[ClaimEvidence]:
    """Compare `function` on activations whose variance is much larger than eps, similar to eps, and much smaller."""
    for spread in (1.0, 1e-2, 1e-4, 30.0):
        yield bench.same(f"spread {spread:g}", function, norm_inputs(0, spread), eps=EPS)


@claim(topic="normalization", harness=True)
def layer(bench: Bench) -> Iterator[ClaimEvidence]:
    """LayerNorm divides by √(variance + eps); the variance is the mean of squared deviations, divided by n."""
    yield from at_every_spread(bench, "norms.norm.layer_norm")


@claim(topic="normalization", harness=True)
def layer_unbiased(bench: Bench) -> Iterator[ClaimEvidence]:
    """Document 003's norm divides by (standard deviation + eps); its variance is divided by n − 1 instead of n."""
    yield from at_every_spread(bench, "norms.variants.layer_norm_unbiased")


@claim(topic="normalization", harness=True)
def batch_evaluation(bench: Bench) -> Iterator[ClaimEvidence]:
    """In evaluation, BatchNorm uses its running statistics."""
    for spread in (1.0, 1e-3):
        arrays = norm_inputs(1) | {"mean": np.full(EMBED_DIM, 0.4, np.float32)}
        arrays["variance"] = np.linspace(spread**2, 2 * spread**2, EMBED_DIM).astype(np.float32)
        yield bench.same(f"spread {spread:g}", "norms.batch.batch_norm", arrays, eps=EPS)


@claim(topic="normalization", harness=True)
def batch_statistics(bench: Bench) -> Iterator[ClaimEvidence]:
    """Batch statistics are each feature's mean and variance (divided by n) over the n positions of all rows."""
    arrays = {"x": norm_inputs(2)["x"]}
    oracle = function_oracle("norms.batch.batch_statistics", arrays)
    for name, value in named_parts(bench.function("norms.batch.batch_statistics")(*arrays.values())):
        yield bench.evidence("drawn").oracle(oracle, name, value)


@claim(topic="normalization", harness=True)
def batch_training(bench: Bench) -> Iterator[ClaimEvidence]:
    """In training, BatchNorm normalizes by the statistics of the batch, and updates its running statistics."""
    config = preset("translation").resized(embed_dim=EMBED_DIM)
    config = type(config)(**(config.as_dict() | {"norm": "batch"}))
    parameters = scoped_parameters(probe_parameters(config, 6), "encoder.layers.0.self_attention_norm")
    batches = {f"batch {index}": norm_inputs(index, 1 + index)["x"] for index in range(4)}

    def run(arrays: Arrays, tap: Tap) -> None:
        state = {name: arrays[name] for name in parameters}
        norm = reference_module("norms.norm.Norm", config, state, dtype=arrays["weight"].dtype.name)
        for name, value in _normalized(norm, {name: arrays[name] for name in batches}):
            tap(name, value)

    norm = bench.module("norms.norm.Norm", config, parameters)
    yield from bench.evidence("four batches").taps(Oracle(run, parameters | batches), dict(_normalized(norm, batches)))


def _normalized(norm: Module, batches: Arrays) -> Iterator[tuple[str, Any]]:
    """Yield a batch normalized in evaluation, then each batch normalized in training, and the statistics after the
    batch."""
    yield "before", norm(batches["batch 0"])
    norm.use_batch_statistics()
    for name, batch in batches.items():
        yield name, norm(batch)
        state = norm.parameters()
        yield from ((f"{statistic} after {name}", state[statistic]) for statistic in ("running_mean", "running_var"))


@claim(topic="normalization", dtypes=WIDE, harness=True)
def model_in_training(bench: Bench) -> Iterator[ClaimEvidence]:
    """In training, a model's activations, and its running statistics after each batch, agree with the reference."""
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
    """Yield the activations of each batch in training, and the running statistics after the batch."""
    model.use_batch_statistics()
    for index, batch in enumerate(batches):
        taps: Arrays = {}
        tokens: dict[str, Any] = {**batch}
        yield f"logits of batch {index}", model(**tokens, taps=taps)
        yield from ((f"{name} of batch {index}", value) for name, value in taps.items())
        state = model.parameters()
        yield from ((f"{name} after batch {index}", state[name]) for name in state if "running" in name)
