"""Masks, exactly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

TOKENS = np.array([[5, 0, 7, 0], [0, 3, 0, 0], [0, 0, 0, 0], [1, 2, 3, 4]])


@claim(dtypes=("float32",), of_reference=True, harness=True)
def causal(bench: Bench) -> Iterator[Evidence]:
    """Position t sees positions 0 to t and none after it."""
    causal_mask = bench.function("masks.causal_mask")
    for length in (1, 2, 7):
        truth = [[key <= query for key in range(length)] for query in range(length)]
        mask = causal_mask(np.arange(length)[None], length)
        yield bench.evidence("masks.causal", f"length {length}").exactly("mask", mask, [[truth]])


@claim(dtypes=("float32",), of_reference=True, harness=True)
def padding(bench: Bench) -> Iterator[Evidence]:
    """Exactly the padding is masked, wherever it is; without a padding token, nothing is."""
    padding_mask, visible_keys = (bench.function(f"masks.{name}") for name in ("padding_mask", "visible_keys"))
    for pad_id in (0, 3, None):
        truth = [[[[token != pad_id for token in row]]] for row in TOKENS.tolist()]
        mask = padding_mask(visible_keys(TOKENS, pad_id))
        yield bench.evidence("masks.padding", f"pad_id {pad_id}").exactly("mask", mask, truth)


@claim(dtypes=("float32",), of_reference=True, harness=True)
def target(bench: Bench) -> Iterator[Evidence]:
    """A decoder sees no future token and, with `causal-and-padding`, no padding."""
    target_mask = bench.function("masks.target_mask")
    past = [[key <= query for key in range(4)] for query in range(4)]
    both = [[[[past[q][k] and row[k] != 0 for k in range(4)] for q in range(4)]] for row in TOKENS.tolist()]
    for kind, truth in (("causal", [[past]]), ("causal-and-padding", both)):
        mask = target_mask(np.arange(4)[None], TOKENS != 0, kind)
        yield bench.evidence("masks.target", kind).exactly("mask", mask, truth)
