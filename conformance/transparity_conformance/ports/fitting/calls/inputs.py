"""The inputs with which a model is called: plain tokens, those that may be padding, and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.ports.fitting.subject import FitError, Heard, ModuleError, Subject
from transparity_conformance.ports.fitting.values.embedding import table_of

LENGTHS = ((31, 29), (19, 17), (13, 11), (9, 7), (5, 4), (3, 2))
"""Lengths of a source, or of a lone stack's tokens, and of a target, the first that the module takes."""

BATCH = 3

FIRST, LAST = 12, 4
"""Tokens at the two ends of a large vocabulary that are tried as padding."""


def first_answer(subject: Subject) -> tuple[Sequence[int], dict[str, int], Arrays]:
    """The lengths that the module takes, the sizes of the tables that its inputs look up, and plain tokens."""
    error: FitError | None = None
    for each in LENGTHS:
        lengths = dict(zip(subject.tokens, each, strict=False))
        inputs = {name: subject.random.integers(0, 2, (BATCH, length)) for name, length in lengths.items()}
        try:
            heard = subject.hear(with_further(subject, inputs, {}))
            sizes = _tables(subject, heard)
            plain = {name: _plain(subject.random, sizes[name], length) for name, length in lengths.items()}
            plain = with_further(subject, plain, sizes)
            subject.call(plain)
        except ModuleError as raised:
            error = error or raised
            continue
        return tuple(lengths.values()), sizes, plain
    assert error is not None
    raise error


def _tables(subject: Subject, heard: Heard) -> dict[str, int]:
    """The rows of the tables that the tokens, and their types, look up."""
    sizes: dict[str, int] = {}
    used: set[str] = set()
    for name in (*subject.tokens, *(["token_types"] if "token_types" in subject.names else [])):
        left = {each: value for each, value in subject.values.items() if name in subject.tokens or each not in used}
        table = table_of(heard.operations, heard.inputs[name], left)
        if table is None and name == "token_types":  # it takes some, but has no table of its own for them
            del subject.names[name]
            continue
        if table is None:
            raise FitError(
                f"No operation looks rows of a parameter up by the {name}; expected a table of embeddings, and all "
                "tokens in one call."
            )
        used.add(table)
        sizes[name] = len(subject.values[table])
    return sizes


def _plain(random: np.random.Generator, size: int, length: int) -> np.ndarray:
    """Tokens of which none is likely to be padding, all different in a row if there are as many."""
    usual = np.arange(4, size - 1) if size > 8 else np.arange(size)
    rows = [random.permutation(np.resize(random.permutation(usual), length)) for _ in range(BATCH)]
    return np.stack(rows)


def with_further(subject: Subject, inputs: Arrays, sizes: Mapping[str, int]) -> Arrays:
    first = inputs[subject.tokens[0]]
    further: Arrays = {}
    if "attention_mask" in subject.names:
        further["attention_mask"] = np.ones_like(first)
    if "token_types" in subject.names:
        further["token_types"] = (np.arange(first.shape[1]) + np.arange(len(first))[:, None]) % sizes.get(
            "token_types", 1
        )
    return {name: inputs[name] for name in subject.tokens} | further


def masked(inputs: Arrays) -> Arrays:
    """The inputs with some tokens masked, in each row others."""
    mask = np.ones_like(inputs["attention_mask"])
    for row in range(len(mask)):
        mask[row, 1 + row :: 3] = 0
    return {**inputs, "attention_mask": mask}


def paddings(plain: Arrays, sizes: Mapping[str, int]) -> Arrays:
    """Rows in which every token that may be padding is behind one that is plain."""
    rows: dict[str, list[np.ndarray]] = {}
    for name, size in sizes.items():
        if name == "token_types":
            continue
        tokens = plain[name]
        length = tokens.shape[1]
        tried = np.arange(size) if size <= 256 else np.r_[:FIRST, size - LAST : size]
        most = max(1, length - 2)
        chunks = [tried[begin : begin + most] for begin in range(0, len(tried), most)]
        rows[name] = []
        for chunk in chunks:
            for first in (tokens[0, 0], tokens[1, 0] if tokens[1, 0] != tokens[0, 0] else tokens[0, 1]):
                row = np.full(length, first)
                row[1 : 1 + len(chunk)] = chunk[: length - 1]
                rows[name].append(row)
    most = max(map(len, rows.values()))
    return {name: np.stack([each[i % len(each)] for i in range(most)]) for name, each in rows.items()}
