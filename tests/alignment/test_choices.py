"""The checker finds the chosen experts only where later operations use this choice.

DeepSeek-V3 of transformers gathers the weights of the chosen experts; only its masks of groups and its masked scores
cover
all experts. Qwen3-MoE computes a softmax over all experts, which could be mistaken for the choice.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from tests.listening.common import is_same

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import plan_of, read
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.running.process.running import built, run_listening
from transparity_numpy.transformer import transformer

with warnings.catch_warnings():  # import warnings do not concern this project
    warnings.simplefilter("ignore")


def heard(build: Any, probe: Probe) -> Arrays:
    """Return the taps that the checker finds by value in a port."""
    taps, operations = run_listening(built(build, probe), probe)
    plan = plan_of(probe, operations, taps["logits"], "float32", Clock())
    return read(plan, probe, operations, taps["logits"])[0]


def wrong(probe: Probe, found: Arrays) -> set[str]:
    """Return the names of taps that the reference computes differently from the taps before them."""
    ours = walk(probe, found)
    return {tap.split(".", 3)[-1] for tap, value in found.items() if not is_same(value, ours[tap])}


def test_more_experts_that_are_chosen_are_found_where_what_follows_is_made_from_them() -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Arrays]:
        """Return the NumPy column in float32, which chooses one expert too many."""
        more = dataclasses.replace(config, experts_per_token=3)
        cast = {name: value.astype(np.float32) for name, value in parameters.items()}
        return lambda **inputs: {"logits": transformer(more, cast, **inputs)}

    row = aligned_probe(next(iter(probes_of(MODELS["deepseek"], "deepseek").values())))
    found = heard(build, row)
    assert wrong(row, found) == {"feed_forward.router_chosen"}
    chosen = [value for tap, value in found.items() if tap.endswith("router_chosen")]
    assert chosen and all(np.all(each.sum(-1) == 3) for each in chosen)
