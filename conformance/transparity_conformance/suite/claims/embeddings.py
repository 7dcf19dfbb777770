"""Tokens and positions as vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator

from transparity_conformance.oracle.budgets import RULES, epsilon
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim


@claim(dtypes=("float32",), of_reference=True, harness=True)
def sinusoidal(bench: Bench) -> Iterator[Evidence]:
    """The table of sines and cosines is the formula's, interleaved or halved, computed in float64 for every dtype."""
    table = bench.function("embeddings.sinusoidal_positions")
    for length, size in ((1, 2), (101, 6), (11, 24)):
        angles = [[position / 10_000 ** (i // 2 * 2 / size) for i in range(size)] for position in range(length)]
        truth = [[(math.cos if i % 2 else math.sin)(row[i]) for i in range(size)] for row in angles]
        # An angle is rounded before its sine is taken, so an ulp of the largest angle is what float64 can promise.
        budget = RULES["float64"].floor * epsilon("float64") * length
        record = bench.evidence("embeddings.sinusoidal", f"{length}×{size}")
        yield record.within("positions", table(length, size), truth, budget)
        halves = [row[::2] + row[1::2] for row in truth]
        yield record.within("sines, then cosines", table(length, size, 10_000.0, "halves"), halves, budget)
