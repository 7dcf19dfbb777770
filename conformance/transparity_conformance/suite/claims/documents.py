"""The numbers that the five documents print, exactly, and their shapes at full size."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from transparity.parameters import initialize_parameters
from transparity.presets import preset
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.texts import passage_tokens
from transparity_conformance.report.comparison import Evidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

A, B = np.arange(1, 17).reshape(4, 4), np.arange(100, 116).reshape(4, 4)

# Document 000, "Einsum usage".
PRODUCT = [[1080, 1090, 1100, 1110], [2776, 2802, 2828, 2854], [4472, 4514, 4556, 4598], [6168, 6226, 6284, 6342]]
ROW_BY_ROW = [
    [[100, 202, 306, 412], [104, 210, 318, 428], [108, 218, 330, 444], [112, 226, 342, 460]],
    [[500, 606, 714, 824], [520, 630, 742, 856], [540, 654, 770, 888], [560, 678, 798, 920]],
    [[900, 1010, 1122, 1236], [936, 1050, 1166, 1284], [972, 1090, 1210, 1332], [1008, 1130, 1254, 1380]],
    [[1300, 1414, 1530, 1648], [1352, 1470, 1590, 1712], [1404, 1526, 1650, 1776], [1456, 1582, 1710, 1840]],
]
# 'ij,kl->ijkl', one line of the document's printout a row: A's element by element times all of B.
OUTER = """
100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115
200 202 204 206 208 210 212 214 216 218 220 222 224 226 228 230
300 303 306 309 312 315 318 321 324 327 330 333 336 339 342 345
400 404 408 412 416 420 424 428 432 436 440 444 448 452 456 460
500 505 510 515 520 525 530 535 540 545 550 555 560 565 570 575
600 606 612 618 624 630 636 642 648 654 660 666 672 678 684 690
700 707 714 721 728 735 742 749 756 763 770 777 784 791 798 805
800 808 816 824 832 840 848 856 864 872 880 888 896 904 912 920
900 909 918 927 936 945 954 963 972 981 990 999 1008 1017 1026 1035
1000 1010 1020 1030 1040 1050 1060 1070 1080 1090 1100 1110 1120 1130 1140 1150
1100 1111 1122 1133 1144 1155 1166 1177 1188 1199 1210 1221 1232 1243 1254 1265
1200 1212 1224 1236 1248 1260 1272 1284 1296 1308 1320 1332 1344 1356 1368 1380
1300 1313 1326 1339 1352 1365 1378 1391 1404 1417 1430 1443 1456 1469 1482 1495
1400 1414 1428 1442 1456 1470 1484 1498 1512 1526 1540 1554 1568 1582 1596 1610
1500 1515 1530 1545 1560 1575 1590 1605 1620 1635 1650 1665 1680 1695 1710 1725
1600 1616 1632 1648 1664 1680 1696 1712 1728 1744 1760 1776 1792 1808 1824 1840
"""

# Document 003, "split_heads": a sequence of four tokens, and what two heads see of it.
TOKENS = [[1.0, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
HEADS = [[[1.0, 2], [5, 6], [9, 10], [13, 14]], [[3, 4], [7, 8], [11, 12], [15, 16]]]

# Document 003, "Masking": sequences padded to one length, their padding mask, and future_mask(5).
PADDED = [[1, 2, 3, 4, 0], [5, 6, 7, 0, 0], [8, 9, 0, 0, 0], [10, 11, 12, 13, 14]]
PADDING = [
    [True, True, True, True, False],
    [True, True, True, False, False],
    [True, True, False, False, False],
    [True, True, True, True, True],
]
FUTURE = [
    [True, False, False, False, False],
    [True, True, False, False, False],
    [True, True, True, False, False],
    [True, True, True, True, False],
    [True, True, True, True, True],
]

# The example batches: document 000's; 002's and 004's, which are the same.
WALKTHROUGH = {
    "source": [[1, 2, 3, 4, 5, 6, 7, 2, 0, 0], [2, 4, 5, 6, 7, 1, 5, 3, 4, 0]],
    "target": [[1, 2, 3, 4, 5, 6, 7, 1, 0, 0], [2, 4, 5, 6, 7, 1, 2, 3, 4, 0]],
}
NOTEBOOK = {
    "source": [[1, 5, 6, 4, 3, 9, 5, 2, 0], [1, 8, 7, 3, 4, 5, 6, 7, 2]],
    "target": [[1, 7, 4, 3, 5, 9, 2, 0], [1, 5, 6, 2, 4, 7, 6, 2]],
}
PRINTED_SHAPES = {
    "walkthrough": (WALKTHROUGH, (2, 9, 8)),
    "shared-heads": (NOTEBOOK, (2, 7, 10)),
    "translation": (NOTEBOOK, (2, 7, 10)),
}


@claim(dtypes=("float32",), of_reference=True, harness=True)
def einsum(bench: Bench) -> Iterator[Evidence]:
    """Document 000's einsum examples agree exactly; its first printed line is a mistake of the document."""
    record = bench.evidence("documents.einsum", "document 000")
    run = bench.harness.einsum
    for subscripts in ("ij,jk", "ij,jk->ik"):
        yield record.exactly(subscripts, run(subscripts, A, B), PRODUCT)
    note = "the document prints A·B under 'ij,kj->ik', which is A·Bᵀ"
    yield record.exactly("ij,kj->ik as printed", run("ij,kj->ik", A, B), PRODUCT, "breaks", note)
    yield record.exactly("ij,kj->ik of A and Bᵀ", run("ij,kj->ik", A, B.T), PRODUCT)
    yield record.exactly("ij,kj->ikj", run("ij,kj->ikj", A, B), ROW_BY_ROW)
    outer = np.array(OUTER.split(), int).reshape(4, 4, 4, 4)
    yield record.exactly("ij,kl->ijkl", run("ij,kl->ijkl", A, B), outer)


@claim(dtypes=("float32",), of_reference=True, harness=True)
def split_heads(bench: Bench) -> Iterator[Evidence]:
    """Document 003's `split_heads` example agrees exactly."""
    result = bench.function("attention.split_heads")(np.array([TOKENS], np.float32), 2)
    yield bench.evidence("documents.split_heads", "document 003").exactly("heads", result, [HEADS])


@claim(dtypes=("float32",), of_reference=True, harness=True)
def masks(bench: Bench) -> Iterator[Evidence]:
    """The masks that documents 000 and 003 print agree exactly."""
    record = bench.evidence("documents.masks", "documents 000 and 003")
    padding = bench.function("masks.padding_mask")(bench.function("masks.visible_keys")(np.array(PADDED), 0))
    yield record.exactly("src_mask", padding, np.array(PADDING)[:, None, None])
    yield record.exactly("future_mask(5)", bench.function("masks.causal_mask")(np.arange(5)[None], 5), [[FUTURE]])


@claim(dtypes=("float64", "float32"), of_reference=True, harness=True)
def masked_columns(bench: Bench) -> Iterator[Evidence]:
    """Document 003's example gives the two masked keys weights of exactly zero."""
    random = np.random.default_rng(0)
    query, key = (random.random((2, 1, 10, 5)).astype(np.float32) for _ in range(2))
    mask = np.ones((2, 1, 1, 10), bool)
    mask[..., -1], mask[..., 5] = False, False
    scores = bench.function("attention.attention_scores")(query, key, 5**-0.5)
    weights = bench.function("attention.attention_weights")(scores, mask, -1e9)
    record = bench.evidence("documents.masked_columns", "document 003")
    for column in (-1, 5):
        yield record.exactly(f"weights[..., {column}]", weights[..., column], np.zeros((2, 1, 10)))


@functools.cache
def full_size_oracle(case: str) -> tuple[Arrays, Arrays, Oracle]:
    """A preset at its document's size, with freshly initialised weights, on the document's example batch."""
    config = preset(case)
    # As in all of the documents: the target without its last token.
    inputs = {name: np.array(tokens) for name, tokens in PRINTED_SHAPES[case][0].items()}
    inputs["target"] = inputs["target"][:, :-1]
    parameters = initialize_parameters(config, 9)
    return parameters, inputs, forward_oracle(config, parameters, inputs, neighbours=1)


@claim(dtypes=("float32",))
def printed_shapes(bench: Bench) -> Iterator[Evidence]:
    """The documents' example batches at full size have the printed shapes, and agree in their logits."""
    for case, (_, shape) in PRINTED_SHAPES.items():
        parameters, inputs, oracle = full_size_oracle(case)
        result = as_numbers(bench.forward(preset(case), parameters).logits(**inputs))
        record = bench.evidence("documents.printed_shapes", case)
        yield record.exactly("shape", result.shape, shape)
        yield record.oracle(oracle, "logits", result)


@claim(dtypes=("float32",), quick=())
def full_size_passage(bench: Bench) -> Iterator[Evidence]:
    """The language models of document 001 at full size agree at every tap of a whole passage."""
    for case in ("notes-lm", "notes-attention"):
        config = preset(case)
        parameters = probe_parameters(config, 12)
        inputs = {"tokens": passage_tokens(config.vocab_size)[None, : config.max_length]}
        oracle = forward_oracle(config, parameters, inputs, neighbours=1)
        forward = bench.forward(config, parameters)
        taps = forward(**inputs)
        record = bench.evidence("documents.full_size_passage", case)
        for name in oracle.expected:
            yield record.oracle(oracle, name, taps[name])
        yield record.oracle(oracle, "logits by the fast path", forward.logits(**inputs), "logits")
