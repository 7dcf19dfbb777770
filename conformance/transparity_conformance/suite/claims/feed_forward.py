"""The feed-forward by itself."""

from __future__ import annotations

from collections.abc import Iterator

from transparity.presets import PRESETS
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.layers import part_agrees


@claim(harness=True)
def module(bench: Bench) -> Iterator[Evidence]:
    """The feed-forward module agrees on drawn activations."""
    for case in PRESETS:
        yield from part_agrees(bench, "feed_forward.module", case, "feed_forward.FeedForward", "feed_forward", {})
