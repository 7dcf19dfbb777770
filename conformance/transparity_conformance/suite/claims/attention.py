"""Claims about the attention function, and about properties of attention weights."""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_conformance.oracle.probes import Probe, probes, scoped_parameters
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers
from transparity_conformance.suite.bench import Bench, ClaimRecord
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.layers import module_oracle
from transparity_numpy.harness import function as reference_function

LONG = 300
"""A number of queries that exceeds the block size of attention in each backend."""

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 8, 3, 7, 9, 8
HIDDEN = (-math.inf, -1e20, -1e9, -10.0, -1e-20, 0.0)
"""Numbers that replace masked scores. −∞ masks exactly; the larger the number, the weaker the mask."""


def drawn() -> tuple[Arrays, np.ndarray]:
    """Return random queries, keys and values, and a mask with fully visible, fully masked and mixed rows."""
    random = np.random.default_rng(0)
    shapes = {"query": (BATCH, HEADS, QUERIES, HEAD_DIM), "key": (BATCH, HEADS, KEYS, HEAD_DIM)}
    arrays = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    arrays["value"] = random.normal(size=shapes["key"]).astype(np.float32)
    mask = random.random((BATCH, 1, QUERIES, KEYS)) < 0.6
    mask[0, 0, 0], mask[1, 0, 1] = True, False
    return arrays, mask


def scored(scale: float, mask_value: float) -> TransformerConfig:
    scaled: dict[str, Any] = {"attention_scale": "none", "attention_multiplier": scale, "mask_value": mask_value}
    return TransformerConfig(architecture="decoder", target_vocab_size=2, **scaled)


@claim(dtypes=("float64", "float32"), harness=True)
def split_and_merge_heads(bench: Bench) -> Iterator[ClaimEvidence]:
    """Splitting assigns consecutive features to each head, and merging the heads restores the input exactly."""
    x = np.arange(2 * 3 * 8, dtype=np.float32).reshape(2, 3, 8)
    truth = [[[row[2 * head : 2 * head + 2] for row in sequence] for head in range(4)] for sequence in x]
    record = bench.evidence("counted")
    yield record.exactly("split", bench.function("mixers.attention.split_heads")(x, 4), truth)
    yield record.exactly("merged", bench.function("mixers.attention.merge_heads")(np.asarray(truth, np.float32)), x)


@claim(harness=True)
def function(bench: Bench) -> Iterator[ClaimEvidence]:
    """Attention agrees with the reference for every mask value, on random queries, keys and values."""
    arrays, mask = drawn()
    for hidden in HIDDEN:
        case, masked = f"masked scores {hidden:g}", arrays | {"mask": mask}
        yield bench.same(case, "mixers.attention.attention", masked, "context", config=scored(0.7, hidden))
        masked = {"scores": 4 * arrays["query"] @ arrays["key"].swapaxes(-1, -2), "mask": mask}
        yield bench.same(case, "mixers.attention.attention_weights", masked, "weights", masked_score=hidden)


@functools.cache
def long_cases() -> dict[str, tuple[np.ndarray, Arrays, Oracle]]:
    """Return (mask, inputs, oracle) for each kind of mask over `LONG` queries, by the name of the case."""
    random = np.random.default_rng(2)
    shape = (2, 2, LONG, HEAD_DIM)
    arrays = {name: random.normal(size=shape).astype(np.float32) for name in ("query", "key", "value")}
    causal = np.tile(np.tri(LONG, dtype=bool), (2, 1, 1, 1))
    masks = {
        "the future masked": causal[:1],
        "the future and distant keys masked": causal & ~np.tri(LONG, k=-20, dtype=bool),
        "the future and the first three keys masked": causal
        & (np.arange(LONG) >= [[[[3]]], [[[0]]]]),  # no key for early queries
        "a random mask": random.random(causal.shape) < 0.7,
        "nothing masked": np.ones((2, 1, 1, LONG), bool),
    }
    bias = {"bias": random.normal(size=(1, 2, LONG, LONG)).astype(np.float32)}
    given = {name: (mask, arrays) for name, mask in masks.items()}
    sinks = {"sinks": random.normal(size=2).astype(np.float32)}
    given["the future masked, and a bias"] = masks["the future masked"], arrays | bias
    given["the future masked, and sinks"] = masks["the future masked"], arrays | sinks
    given["mixed rows, a bias and sinks"] = masks["a random mask"], arrays | bias | sinks
    return {
        name: (mask, arrays, Oracle(functools.partial(_attended_by_reference, mask), arrays))
        for name, (mask, arrays) in given.items()
    }


@claim(of_reference=True, harness=True)
def long_sequences(bench: Bench) -> Iterator[ClaimEvidence]:
    """Attention over many queries, which a fast path computes in blocks, agrees with the oracle for every mask."""
    for name, (mask, arrays, oracle) in long_cases().items():
        result = _attended(bench.function("mixers.attention.attention"), mask, arrays)
        yield bench.evidence(name).oracle(oracle, "context", result)


def _attended_by_reference(mask: np.ndarray, arrays: Arrays, tap: Tap) -> None:
    _attended(reference_function("mixers.attention.attention", dtype=arrays["query"].dtype.name), mask, arrays, tap=tap)


def _attended(attention: Callable[..., Any], mask: np.ndarray, arrays: Arrays, **named: Any) -> Any:
    query, key, value = (arrays[name] for name in ("query", "key", "value"))
    named |= {"config": scored(0.7, -math.inf), "bias": arrays.get("bias"), "sinks": arrays.get("sinks")}
    return attention(query, key, value, mask, **named)


@claim(harness=True)
def mask_before_and_after_scale(bench: Bench) -> Iterator[ClaimEvidence]:
    """A finite `mask_value` has the right effect, whether scores are masked before or after they are scaled."""
    probe = probes("translation")["mixed"]
    parameters = scoped_parameters(probe.parameters, "encoder.layers.0.self_attention")
    x = np.random.default_rng(1).normal(size=(BATCH, KEYS, probe.config.embed_dim)).astype(np.float32)
    mask = np.ones((BATCH, 1, 1, KEYS), bool)
    mask[1, ..., -2:], mask[2] = False, False
    for order in ("before-scale", "after-scale"):
        config = TransformerConfig(**(probe.config.as_dict() | {"mask_value": -2.0, "mask_order": order}))
        oracle = module_oracle("mixers.attention.SelfAttention", config, parameters, x, mask=mask)
        result = bench.module("mixers.attention.SelfAttention", config, parameters)(x, context={"mask": mask})
        yield bench.evidence(order).oracle(oracle, "output", result, "result")


@claim(of_reference=True, compiled=True, cases="traced_cases", probe="mixed")
def weights_sum_to_one(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """Each row of attention weights sums to one, even if all keys are masked."""
    names = [name for name in probe.oracle.expected if name.endswith("weights")]
    sums = Oracle(_sums, {name: probe.oracle.expected[name].astype(np.float32) for name in names})
    for name in names:
        total = as_numbers(bench.traced(probe)[name]).astype(np.float64).sum(-1)
        yield record.within(name, total, np.ones_like(total), sums.budget(name, bench.subject.dtype))


def _sums(arrays: Arrays, tap: Tap) -> None:
    for name, weights in arrays.items():
        tap(name, weights.sum(-1))


@claim(of_reference=True, compiled=True, cases="traced_cases", probe="mixed")
def masked_keys_have_zero_weight(bench: Bench, probe: Probe, record: ClaimRecord) -> Iterator[ClaimEvidence]:
    """In each row with a visible key, masked keys have a weight of exactly 0, unless the mask value is near zero."""
    breaks = probe.config.mask_value > -1
    note = f"masked scores are replaced by {probe.config.mask_value:g}, which hides nothing" if breaks else ""
    for name, value in bench.traced(probe).items():
        if name.endswith("weights"):
            mask = _mask(probe, name)
            hidden = np.broadcast_to(~mask & mask.any(-1, keepdims=True), np.shape(value))
            weights = as_numbers(value)[hidden]
            yield record.exactly(name, weights, np.zeros_like(weights), "breaks" if breaks else "holds", note)


def _mask(probe: Probe, name: str) -> np.ndarray:
    stack = name.split(".")[0]
    causal = stack == "decoder" and "self_attention" in name
    keys = probe.inputs.get("source" if "cross" in name or stack == "encoder" else "target", probe.inputs.get("tokens"))
    assert keys is not None
    padded = not causal or probe.config.target_mask == "causal-and-padding"
    visible = keys[:, None, None, :] != probe.config.pad_id if padded else np.ones((len(keys), 1, 1, 1), bool)
    return visible & np.tri(keys.shape[1], dtype=bool) if causal else visible
