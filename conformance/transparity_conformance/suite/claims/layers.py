"""One layer or feed-forward by itself, on drawn activations, so that no earlier layer affects it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.presets import PRESETS
from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import probes, scoped_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import module as reference_module

# The shapes of the mixed probe: frameworks that compile every new shape have compiled these.
BATCH, QUERIES, KEYS = 8, 7, 9


def part_agrees(bench: Bench, claim: str, case: str, module: str, scope: str, context: Arrays) -> Iterator[Evidence]:
    """Compare the part `scope` of the case's first layer, given drawn activations and `context` (masks, a memory), in
    its result and every tap."""
    probe = probes(case)["mixed"]
    stack = probe.config.input_stack(probe.config.input_names[-1]) if "Encoder" not in module else "encoder"
    parameters = scoped_parameters(probe.parameters, f"{stack}.layers.0.{scope}".rstrip("."))
    length = QUERIES if stack == "decoder" and probe.config.has_encoder else KEYS
    x = np.random.default_rng(1).normal(size=(BATCH, length, probe.config.embed_dim)).astype(np.float32)

    def run(arrays: Arrays, tap: Tap) -> None:
        state = {name: arrays[name] for name in parameters}
        dtype = arrays["x"].dtype.name
        part = reference_module(module, probe.config, state, dtype=dtype)
        taps: Arrays = {}
        held = {name: arrays[name] for name in context}
        result = part(arrays["x"], **({"context": held} if held else {}), taps=taps)
        for name, value in (taps | {"result": result}).items():
            tap(name, value)

    oracle = Oracle(run, parameters | {"x": x} | context)
    taps: Arrays = {}
    part = bench.module(module, probe.config, parameters)
    named: dict[str, Any] = {"context": context} if context else {}
    result, fast = part(x, **named, taps=taps), part(x, **named)
    record = bench.evidence(claim, case)
    for name in oracle.expected:
        yield record.oracle(oracle, name, result if name == "result" else taps.get(name, np.empty(0)))
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
            yield from part_agrees(bench, "layers.encoder_layer", case, "layers.EncoderLayer", "", {"mask": padding})


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
        yield from part_agrees(bench, "layers.decoder_layer", case, "layers.DecoderLayer", "", context)


@claim(topic="feed_forward", harness=True)
def module(bench: Bench) -> Iterator[Evidence]:
    """The feed-forward module agrees on drawn activations."""
    for case in PRESETS:
        yield from part_agrees(bench, "feed_forward.module", case, "feed_forward.FeedForward", "feed_forward", {})
