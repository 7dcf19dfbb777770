"""Claims about five documents (docs/documents.md): a backend computes exactly the printed values and shapes."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transparity.parameters import initialize_parameters
from transparity.presets import preset
from transparity_conformance.oracle.cases import passage_tokens
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

A, B = np.arange(1, 17).reshape(4, 4), np.arange(100, 116).reshape(4, 4)

PRINTED = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""The outputs that the documents print. Document 000 prints einsum examples and a batch; `outer` has a row for each
element of A: this element times all elements of B. Document 003 prints `split_heads` for four tokens and two heads,
padded sequences with a mask, and future_mask(5). Documents 002 and 004 print a batch."""

PRODUCT, ROW_BY_ROW, OUTER = (PRINTED[name] for name in ("product", "row_by_row", "outer"))
TOKENS, HEADS = PRINTED["tokens"], PRINTED["heads"]
PADDED, PADDING, FUTURE = (PRINTED[name] for name in ("padded", "padding", "future"))
PRINTED_SHAPES = {
    "walkthrough": (PRINTED["walkthrough"], (2, 9, 8)),
    "shared-heads": (PRINTED["notebook"], (2, 7, 10)),
    "translation": (PRINTED["notebook"], (2, 7, 10)),
}


@claim(dtypes=("float32",), of_reference=True, harness=True)
def einsum(bench: Bench) -> Iterator[ClaimEvidence]:
    """The einsum examples of document 000 agree exactly, except for the first printed line, which is a mistake."""
    record = bench.evidence("document 000")
    run = bench.harness.einsum
    for subscripts in ("ij,jk", "ij,jk->ik"):
        yield record.exactly(subscripts, run(subscripts, A, B), PRODUCT)
    note = "the document prints A·B as the result of 'ij,kj->ik', which is A·Bᵀ"
    yield record.exactly("ij,kj->ik as printed", run("ij,kj->ik", A, B), PRODUCT, "breaks", note)
    yield record.exactly("ij,kj->ik of A and Bᵀ", run("ij,kj->ik", A, B.T), PRODUCT)
    yield record.exactly("ij,kj->ikj", run("ij,kj->ikj", A, B), ROW_BY_ROW)
    yield record.exactly("ij,kl->ijkl", run("ij,kl->ijkl", A, B), np.array(OUTER).reshape(4, 4, 4, 4))


@claim(dtypes=("float32",), of_reference=True, harness=True)
def split_heads(bench: Bench) -> Iterator[ClaimEvidence]:
    """The `split_heads` example of document 003 agrees exactly."""
    result = bench.function("mixers.attention.split_heads")(np.array([TOKENS], np.float32), 2)
    yield bench.evidence("document 003").exactly("heads", result, [HEADS])


@claim(dtypes=("float32",), of_reference=True, harness=True)
def masks(bench: Bench) -> Iterator[ClaimEvidence]:
    """The masks agree exactly with the masks that documents 000 and 003 print."""
    record = bench.evidence("documents 000 and 003")
    padding = bench.function("masks.padding_mask")(bench.function("masks.visible_keys")(np.array(PADDED), 0))
    yield record.exactly("src_mask", padding, np.array(PADDING)[:, None, None])
    yield record.exactly("future_mask(5)", bench.function("masks.causal_mask")(np.arange(5)[None], 5), [[FUTURE]])


@claim(dtypes=("float64", "float32"), of_reference=True, harness=True)
def masked_columns(bench: Bench) -> Iterator[ClaimEvidence]:
    """In the example of document 003, the two masked keys have weights of exactly zero."""
    random = np.random.default_rng(0)
    query, key = (random.random((2, 1, 10, 5)).astype(np.float32) for _ in range(2))
    mask = np.ones((2, 1, 1, 10), bool)
    mask[..., -1], mask[..., 5] = False, False
    scores = bench.function("mixers.attention.attention_scores")(query, key, 5**-0.5)
    weights = bench.function("mixers.attention.attention_weights")(scores, mask, -1e9)
    record = bench.evidence("document 003")
    for column in (-1, 5):
        yield record.exactly(f"weights[..., {column}]", weights[..., column], np.zeros((2, 1, 10)))


@functools.cache
def full_size_oracle(case: str) -> tuple[Arrays, Arrays, Oracle]:
    """Return initial weights of the full-size model of a preset, the batch that its document prints, and the oracle."""
    config = preset(case)
    # In all documents, the model gets the target without the last token.
    inputs = {name: np.array(tokens) for name, tokens in PRINTED_SHAPES[case][0].items()}
    inputs["target"] = inputs["target"][:, :-1]
    parameters = initialize_parameters(config, 9)
    return parameters, inputs, forward_oracle(config, parameters, inputs, neighbours=1)


@claim(dtypes=("float32",), cases=PRINTED_SHAPES)
def printed_shapes(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """On the documents' batches, full-size models return the printed shapes, and logits that agree with the oracle."""
    parameters, inputs, oracle = full_size_oracle(case)
    result = as_numbers(bench.forward(preset(case), parameters).logits(**inputs))
    record = bench.evidence(case)
    yield record.exactly("shape", result.shape, PRINTED_SHAPES[case][1])
    yield record.oracle(oracle, "logits", result)


@claim(dtypes=("float32",), quick=(), cases=("notes-lm", "notes-attention"))
def full_size_passage(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """On a passage of text, all activations of document 001's full-size language models agree with the oracle."""
    config = preset(case)
    parameters = probe_parameters(config, 12)
    inputs = {"tokens": passage_tokens(config.vocab_size)[None, : config.max_length]}
    oracle = forward_oracle(config, parameters, inputs, neighbours=1)
    yield from bench.evidence(case).forward(oracle, bench.forward(config, parameters), inputs)
