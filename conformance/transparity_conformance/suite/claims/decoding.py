"""Claims that decoding with a cache, in chunks of any size, returns the logits of the full forward pass."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import InputError
from transparity.presets import PRESETS, preset
from transparity.protocol import Forward
from transparity_conformance.oracle.backends import REFERENCE
from transparity_conformance.oracle.budgets import EVERY, WIDE
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays, Oracle, forward_oracle
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters, sees_something
from transparity_conformance.report.comparison import ClaimEvidence, as_numbers
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

LENGTH = 5

UNPADDED = {"unpadded": dataclasses.replace(preset("translation").resized(), pad_id=None)}

Chunks = list[tuple[int, ...]]
"""For each step of decoding, the number of new tokens of each row."""


@functools.cache
def model(case: str) -> tuple[TransformerConfig, Arrays, Arrays, Oracle]:
    config = (CASES | UNPADDED).get(case) or preset(case).resized()
    config = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=2)
    parameters, inputs = probe_parameters(config), mixed_inputs(config, 0, LENGTH, LENGTH)
    return config, parameters, inputs, forward_oracle(config, parameters, inputs)


def stepped(forward: Forward, config: TransformerConfig, inputs: Arrays, chunks: Chunks) -> np.ndarray:
    """Decode a batch in chunks, and return the logits (batch, length, vocab). Finished rows get filler tokens."""
    tokens = config.input_names[-1]
    batch, length = inputs[tokens].shape
    of_tokens = {tokens} if config.has_encoder else {tokens, *config.further_inputs}
    room = {
        name: np.pad(value, ((0, 0), (0, length)), constant_values=config.filling_id if name == tokens else 0)
        for name, value in inputs.items()
        if name in of_tokens
    }
    given: dict[str, Any] = {name: value for name, value in inputs.items() if name not in of_tokens}
    logits, cache, at = np.zeros((batch, 2 * length, config.vocab_size)), None, np.zeros(batch, int)
    for counts in chunks:
        for name, rows in room.items():
            given[name] = np.stack([row[begin : begin + max(counts)] for row, begin in zip(rows, at, strict=True)])
        ragged = np.array(counts) if len(set(counts)) > 1 else None
        answer, cache = forward.step(given.pop(tokens), cache, **given, valid_lengths=ragged)
        given, said = {}, as_numbers(answer)
        for row, (begin, count) in enumerate(zip(at, counts, strict=True)):
            logits[row, begin : begin + count] = said[row, :count]
        at = at + counts
    assert (at >= length).all()
    return logits[:, :length]


def splits(length: int, rows: int) -> Iterator[tuple[str, Chunks]]:
    for cuts in itertools.product((False, True), repeat=length - 1):
        bounds = [0, *(i for i, cut in enumerate(cuts, 1) if cut), length]
        sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
        yield "+".join(map(str, sizes)), [(size,) * rows for size in sizes]


def ragged(length: int, rows: int) -> Iterator[tuple[str, Chunks]]:
    """Yield two lists of chunks, each with a name. In both lists, the first chunks of the rows have 1, 2 or 3 tokens.
    In the second list, the second chunks have 3, 2 or 1 tokens. All other chunks are single tokens."""
    firsts = tuple(1 + row % 3 for row in range(rows))
    yield "chunks of 1, 2 and 3, then single tokens", [firsts, *[(1,) * rows] * (length - 1)]
    other = tuple(3 - row % 3 for row in range(rows))
    yield "chunks of 1, 2 and 3, then of 3, 2 and 1", [firsts, other, (1,) * rows]


def cached(bench: Bench, case: str, ways: list[tuple[str, Chunks]], name: str = "") -> Iterator[ClaimEvidence]:
    """Decode with the model `name` (by default, `case`) in several `ways`, and compare the logits."""
    dtype = bench.subject.dtype
    config, parameters, inputs, oracle = model(name or case)
    forward, record = bench.forward(config, parameters), bench.evidence(case)
    if not config.prefixes_agree:
        weak = f"a mask value of {config.mask_value:g} hides nothing"
        note = f"{'angles depend on the length' if config.mask_is_exact else weak}, so the model refuses a cache"
        yield record.exactly("cached", _is_refused(forward, config, inputs), False, "breaks", note)
        return
    where = sees_something(config, inputs)
    expected, budget = oracle.expected["logits"][where], oracle.budget("logits", dtype)
    whole = as_numbers(forward.logits(**inputs)).astype(np.float64)[where]
    for way, chunks in ways:
        logits = stepped(forward, config, inputs, chunks)[where]
        yield record.within(way, logits, expected, budget)
        if dtype in WIDE and bench.subject.backend != REFERENCE:
            error = float(np.abs(whole - expected).max())
            beyond = np.abs(logits - expected).max() - error
            # Allow for rounding, because a matrix product with another number of rows may sum in another order.
            allowed = error + oracle.noise(dtype)["logits"]
            yield record.within(f"{way}: error beyond the error of the forward pass", max(0.0, beyond), 0.0, allowed)


def _is_refused(forward: Forward, config: TransformerConfig, inputs: Arrays) -> bool:
    try:
        stepped(forward, config, inputs, [(LENGTH,) * len(inputs[config.input_names[-1]])])
    except InputError:
        return True
    return False


ROWS = 8
SOME = [(way, chunks) for way, chunks in splits(LENGTH, ROWS) if way in ("1+1+1+1+1", "2+1+2")]


FAMILIES = tuple(case for case, config in CASES.items() if config.has_decoder and config.head == "logits")
FEW = ("walkthrough", "translation", "qwen", "gemma", "t5", "opt", "qwen3-next", "mamba2")
"""If a backend compiles models, only these cases are tested."""


@claim(
    dtypes=EVERY,
    of_reference=True,
    quick=("float32",),
    cases=("walkthrough", "translation", "qwen3-next", "mamba2"),
    all_cases=FAMILIES,
    few=FEW,
    all_in=("float32",),
)
def chunks(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """The logits of decoding, token by token or in uneven chunks, equal the logits of the full forward pass."""
    yield from cached(bench, case, SOME)


@claim(dtypes=WIDE, of_reference=True, compiled=True, quick=("float32",))
def single_row(bench: Bench) -> Iterator[ClaimEvidence]:
    """The logits of a row that is decoded without other rows equal the logits of the full forward pass."""
    config, parameters, inputs, oracle = model("translation")
    alone = {name: values[:1] for name, values in inputs.items()}
    where = sees_something(config, alone)
    logits = stepped(bench.forward(config, parameters), config, alone, [(2,), *[(1,)] * (LENGTH - 2)])[where]
    expected, budget = oracle.expected["logits"][:1][where], oracle.budget("logits", bench.subject.dtype)
    yield bench.evidence("translation").within("a chunk of 2, then single tokens", logits, expected, budget)


@claim(dtypes=WIDE, of_reference=True, quick=("float32",), cases=("notes-lm", "qwen3-next", "mamba2"))
def ragged_rows(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """If rows advance by different numbers of tokens, the logits still equal the logits of the full forward pass."""
    yield from cached(bench, case, list(ragged(LENGTH, ROWS)))


@claim(dtypes=("float32",), of_reference=True, quick=(), cases=(*PRESETS, *UNPADDED))
def every_chunking(bench: Bench, case: str) -> Iterator[ClaimEvidence]:
    """For every preset and every split of a sequence into chunks, the logits equal the logits of a forward pass."""
    yield from cached(bench, case, [*splits(LENGTH, ROWS), *ragged(LENGTH, ROWS)])
