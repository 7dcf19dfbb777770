"""The feed-forward by itself."""

from __future__ import annotations

from collections.abc import Iterator

from transparity.presets import PRESETS
from transparity_conformance.bench import Bench
from transparity_conformance.claims import claim
from transparity_conformance.claims.layers import part_agrees
from transparity_conformance.evidence import Evidence


@claim()
def alone(bench: Bench) -> Iterator[Evidence]:
    """The feed-forward on drawn activations."""
    for case in PRESETS:
        yield from part_agrees(bench, "feed_forward.alone", case, "feed_forward.FeedForward", "feed_forward", [])
