"""Parts of a layer by themselves, on drawn activations: layers, feed-forward, norms and recurrences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS
from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import probes, scoped_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import module as reference_module
from transparity_numpy.recurrent.recurrence import gated_delta_rule, state_space_rule

# The shapes of the mixed probe: frameworks that compile every new shape have compiled these.
BATCH, QUERIES, KEYS = 8, 7, 9


def module_oracle(
    name: str, config: TransformerConfig, parameters: Arrays, x: np.ndarray, **context: np.ndarray
) -> Oracle:
    """The oracle of a module of the reference, given `context` (masks, a memory): its taps, and its `result`."""

    def run(values: Arrays, tap: Tap) -> None:
        state, taps = {key: values[key] for key in parameters}, dict[str, Any]()
        module = reference_module(name, config, state, dtype=values["x"].dtype.name)
        named = {"context": {key: values[key] for key in context}} if context else {}
        result = module(values["x"], **named, taps=taps)
        for where, value in {**taps, "result": result}.items():
            tap(where, value)

    return Oracle(run, parameters | {"x": x} | context)


def part_agrees(bench: Bench, case: str, module: str, scope: str, context: Arrays) -> Iterator[Evidence]:
    """Compare the part `scope` of the case's first layer, given drawn activations and `context` (masks, a memory), in
    its result and every tap."""
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
    """Return a self-attention mask of the future and some padding, and a mask of padded `keys`, with one row of padding
    only."""
    visible = np.ones((BATCH, 1, 1, queries), bool)
    visible[1, ..., -2:] = False
    memory = np.ones((BATCH, 1, 1, keys), bool)
    memory[0, ..., 1], memory[2] = False, False
    return visible & np.tri(queries, dtype=bool), memory


@claim(harness=True)
def encoder_layer(bench: Bench) -> Iterator[Evidence]:
    """One encoder layer agrees."""
    for case, preset in PRESETS.items():
        if preset.config.has_encoder:
            _, padding = _masks(KEYS, KEYS)
            yield from part_agrees(bench, case, "layers.EncoderLayer", "", {"mask": padding})


@claim(harness=True)
def decoder_layer(bench: Bench) -> Iterator[Evidence]:
    """One decoder layer agrees, with and without a memory."""
    for case, preset in PRESETS.items():
        length = QUERIES if preset.config.has_encoder else KEYS
        causal, memory_mask = _masks(length, KEYS)
        context = {"mask": causal}
        if preset.config.has_encoder:
            embed_dim = probes(case)["mixed"].config.embed_dim
            memory = np.random.default_rng(2).normal(size=(BATCH, KEYS, embed_dim)).astype(np.float32)
            context |= {"memory": memory, "memory_mask": memory_mask}
        yield from part_agrees(bench, case, "layers.DecoderLayer", "", context)


@claim(topic="feed_forward", harness=True)
def module(bench: Bench) -> Iterator[Evidence]:
    """The feed-forward module agrees on drawn activations."""
    for case in PRESETS:
        yield from part_agrees(bench, case, "feed_forward.FeedForward", "feed_forward", {})


RULES = {"gated_delta_rule": gated_delta_rule, "state_space_rule": state_space_rule}

LENGTH, CUT = 131, 70
"""More positions than two chunks have, and where the second call goes on: in the middle of one."""

NAMES = ("query", "key", "value", "log_decay", "beta", "state")


def _drawn() -> Arrays:
    """Two rows of three heads; keys and queries of length 1, decays that leave something of the state, or little."""
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
        tap(f"read of {name}", read)
        tap(f"state of {name}", state)


@claim(topic="recurrence", dtypes=("float32", "float64"), harness=True)
def steps(bench: Bench) -> Iterator[Evidence]:
    """The rules of states give what they give step by step, over more positions than a chunk has, and where a second
    call goes on from the state of the first."""
    arrays = _drawn()
    oracle, record = Oracle(_run, arrays), bench.evidence(f"{LENGTH} positions")
    *given, begun = (arrays[name] for name in NAMES)
    for name in RULES:
        rule = bench.function(f"recurrent.recurrence.{name}")
        read, state = rule(*given, begun)
        yield record.oracle(oracle, f"read of {name}", read)
        yield record.oracle(oracle, f"state of {name}", state)
        first, between = rule(*(x[:, :, :CUT] for x in given), begun)
        second, state = rule(*(x[:, :, CUT:] for x in given), np.asarray(between))
        whole = np.concatenate([np.asarray(first), np.asarray(second)], axis=2)
        yield record.oracle(oracle, f"read of {name} in two calls", whole, f"read of {name}")
        yield record.oracle(oracle, f"state of {name} after two calls", state, f"state of {name}")
