"""Features that no preset has: rotary and relative positions, grouped heads, gates, windows, softcaps, tied heads."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from transparity.config.probe_sizes import most_experts
from transparity_conformance.oracle.budgets import HALF
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

FEW = (
    *("llama", "qwen", "gemma", "olmo2", "gpt-j", "gpt-neox", "t5", "bart", "bert", "roberta", "modern-bert", "bloom"),
    *("qwen-moe", "deepseek", "gpt-oss", "masked-bert", "mpnet", "classifier", "last-token", "yarn", "phi3"),
    *("llama4", "qwen3-next", "mamba2", "vit", "whisper", "clip-text", "clip-vision"),
)
"""Families tested if every model is compiled: together they have all features that no preset has."""


@functools.cache
def mixed(case: str) -> Probe:
    """Return the probe of a case that has every kind of row."""
    return probes_of(MODELS[case], case)["mixed"]


@claim(quick=("float32",))
def taps_and_logits(bench: Bench) -> Iterator[Evidence]:
    """Every tap and the fast logits of a model of each family agree; in half precision, in which rounding decides
    between experts, of those without."""
    for case in MODELS if bench.backend.modes[0] == "eager" else FEW:
        if bench.subject.dtype in HALF and most_experts(MODELS[case]):
            continue
        probe, record = mixed(case), bench.evidence("families.taps_and_logits", case)
        forward = bench.forward(probe.config, probe.parameters)
        taps = forward(**probe.inputs)
        for name in probe.oracle.expected:
            yield record.oracle(probe.oracle, name, taps.get(name, np.empty(0)), name)
        yield record.oracle(probe.oracle, "logits by the fast path", forward.logits(**probe.inputs), "logits")
    # With as many keys as heads, one axis could be taken for the other.
    probe, record = mixed("llama"), bench.evidence("families.taps_and_logits", "llama")
    inputs = {name: tokens[:, : probe.config.num_heads] for name, tokens in probe.inputs.items()}
    oracle = forward_oracle(probe.config, probe.parameters, inputs)
    logits = bench.forward(probe.config, probe.parameters)(**inputs)["logits"]
    yield record.oracle(oracle, "logits of as many tokens as heads", logits, "logits")
