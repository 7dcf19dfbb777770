"""The loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.oracle.oracle import function_oracle
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_numpy.harness import function as reference_function


@claim(dtypes=EVERY, of_reference=True, harness=True)
def cross_entropy(bench: Bench) -> Iterator[Evidence]:
    """The loss is the mean of −log softmax at the targets that are not padding, as written out."""
    random = np.random.default_rng(0)
    logits = (3 * random.normal(size=(3, 4, 7))).astype(np.float32)
    targets = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [0, 1, 0, 2]])
    for pad_id in (0, 4, None):
        surprises = [
            math.log(sum(math.exp(x) for x in row)) - row[token]
            for row, token in zip(logits.reshape(-1, 7).tolist(), targets.flatten().tolist(), strict=True)
            if token != pad_id
        ]
        oracle = function_oracle("training.loss.cross_entropy", {"logits": logits, "targets": targets}, pad_id=pad_id)
        budget = oracle.budget("result", bench.subject.dtype)
        result = bench.function("training.loss.cross_entropy")(logits, targets, pad_id)
        record = bench.evidence("loss.cross_entropy", f"pad_id {pad_id}")
        yield record.within("loss", result, sum(surprises) / len(surprises), budget)
    # Frameworks mark ignored targets by a number of their own, -100 or 100: no token may be confused with it.
    logits, targets = np.zeros((1, 2, 128), np.float32), np.array([[100, 127]])
    logits[0, 0, 100] = 3
    expected = math.log(127 + math.exp(3)) / 2 - 3 / 2 + math.log(128) / 2
    oracle = function_oracle("training.loss.cross_entropy", {"logits": logits, "targets": targets}, pad_id=None)
    result = bench.function("training.loss.cross_entropy")(logits, targets, None)
    record = bench.evidence("loss.cross_entropy", "128 tokens")
    yield record.within("loss", result, expected, oracle.budget("result", bench.subject.dtype))


@claim(dtypes=EVERY, of_reference=True, harness=True)
def label_smoothing(bench: Bench) -> Iterator[Evidence]:
    """The loss with label smoothing is the sum over the vocabulary, as written out, padding ignored."""
    random = np.random.default_rng(1)
    logits = (3 * random.normal(size=(3, 4, 7))).astype(np.float32)
    targets = np.array([[1, 2, 0, 0], [3, 4, 5, 6], [0, 1, 0, 2]])
    for share in (0.1, 0.5, 1.0):
        surprises = []
        for row, token in zip(logits.reshape(-1, 7).tolist(), targets.flatten().tolist(), strict=True):
            aims = [share / 7 + (1 - share) * (other == token) for other in range(7)]
            whole = math.log(sum(math.exp(x) for x in row))
            surprises += [sum(aim * (whole - x) for aim, x in zip(aims, row, strict=True))] * (token != 0)
        named = {"pad_id": 0, "label_smoothing": share}
        oracle = function_oracle("training.loss.cross_entropy", {"logits": logits, "targets": targets}, **named)
        result = bench.function("training.loss.cross_entropy")(logits, targets, **named)
        budget = oracle.budget("result", bench.subject.dtype)
        record = bench.evidence("loss.label_smoothing", f"label_smoothing {share}")
        yield record.within("loss", result, sum(surprises) / len(surprises), budget)


@claim(compiled=True)
def model_loss(bench: Bench) -> Iterator[Evidence]:
    """The loss of a model on padded targets agrees."""
    for case in bench.fast_cases:
        probe = probes(case)["mixed"]
        targets = np.roll(probe.inputs[probe.config.input_names[-1]], -1, axis=1)
        logits = probe.oracle
        loss = reference_function("training.loss.cross_entropy")
        expected = loss(logits.expected["logits"], targets, probe.config.pad_id)
        # A mean of differences of logits has at most the error of two logits.
        budget = 2 * logits.budget("logits", bench.subject.dtype)
        result = bench.forward(probe.config, probe.parameters).loss(targets, **probe.inputs)
        yield bench.evidence("loss.model_loss", case).within("loss", result, expected, budget)
