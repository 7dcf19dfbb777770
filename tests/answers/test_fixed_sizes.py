"""A port may fix a ratio of its sizes: it is probed in others, and what it cannot be built for is not compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from tests.alignment.test_alignment import GPT2, Gpt2, ScaledByTheWidth

from transparity.config import TransformerConfig
from transparity.config.probe_sizes import feed_forward_width
from transparity.presets import PRESETS, preset
from transparity_conformance import check
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import other_sizes

WIDE = dataclasses.replace(GPT2, feed_forward_dim=4 * GPT2.embed_dim)
HEADS = dataclasses.replace(GPT2, embed_dim=64, num_heads=2, feed_forward_dim=128)


def fixing(is_allowed: Any, kind: type[Gpt2] = Gpt2) -> Any:
    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Gpt2:
        assert is_allowed(config), "these sizes are not mine"
        return kind(config, parameters)

    return build


FIXED = {
    "4 × embed_dim": (WIDE, lambda c: c.feed_forward_dim == 4 * c.embed_dim, "embed_dim 16 to 24"),
    "head_dim": (HEADS, lambda c: c.head_dim == 32, "embed_dim 64 to 128"),
    "vocabulary and max_length": (
        GPT2,
        lambda c: (c.target_vocab_size, c.max_length) == (31, 16),
        "embed_dim 16 to 24",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FIXED)
def test_a_port_that_fixes_sizes_is_probed_in_others(name: str) -> None:
    config, is_allowed, sizes = FIXED[name]
    report = check(fixing(is_allowed), config=config)
    assert report.verdict == "agrees"
    assert sizes in report.coverage.sizes


@pytest.mark.long
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FIXED)
def test_a_wrong_port_that_fixes_sizes_is_named(name: str) -> None:
    config, is_allowed, sizes = FIXED[name]
    report = check(fixing(is_allowed, ScaledByTheWidth), config=config)
    assert [cause.mistake for cause in report.faults[0].causes] == ["attention-scale"]
    assert sizes in report.coverage.sizes
    refused = [line for line in report.not_compared if "these sizes are not mine" in line]
    assert all(line.startswith("probe square (embed_dim 16, feed_forward_dim ") for line in refused)
    assert bool(refused) == ("16" not in sizes or name == "4 × embed_dim")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [Gpt2, ScaledByTheWidth])
def test_what_a_port_cannot_be_built_for_is_not_compared(kind: type[Gpt2]) -> None:
    report = check(fixing(lambda config: config == GPT2, kind), config=GPT2)
    assert report.verdict == ("agrees" if kind is Gpt2 else "diverges")
    assert sum("these sizes are not mine" in line for line in report.not_compared) >= 2


@pytest.mark.parametrize("name", [*PRESETS, *CASES])
def test_other_sizes_can_be_made_of_every_system(name: str) -> None:
    config = preset(name).resized() if name in PRESETS else CASES[name]
    square, *others = other_sizes(config)
    assert square.embed_dim == square.attention_dim
    assert square.feed_forward_dim == (square.embed_dim if config.feed_forward_dim else 0)
    for other in others:
        assert other.feed_forward_dim == feed_forward_width(config, other.embed_dim)
