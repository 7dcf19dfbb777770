"""Operations that were heard in the process of a port, as lists and arrays for the wire."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from transparity_conformance.ports.listening.operation import Operation, Source
from transparity_conformance.ports.listening.source import LONGEST_PATH, MOST_CALLERS
from transparity_conformance.report.text import VALUE, safe

NOT_ON_STACK = -1
"""The number of the source of an operation without one."""


def described(operations: Sequence[Operation]) -> dict[str, Any]:
    """Names, sources and inputs in tables, for there are many operations and few lines; and the values."""
    names: dict[Hashable, int] = {}
    sources: dict[tuple[Source, ...], int] = {(): NOT_ON_STACK}
    return {
        "name": np.array([names.setdefault(each.name, len(names)) for each in operations], np.int64),
        "source": np.array([sources.setdefault(_lines(each), len(sources) - 1) for each in operations], np.int64),
        "inputs": np.array([index for each in operations for index in each.inputs], np.int64),
        "counts": np.array([len(each.inputs) for each in operations], np.int64),
        "value": [each.value for each in operations],
        "arguments": [[i, dict(each.arguments)] for i, each in enumerate(operations) if each.arguments],
        "names": list(names),
        "sources": [[[line.file, line.line, line.code] for line in lines] for lines in sources if lines],
    }


def received(answer: Any) -> list[Operation]:
    """The operations that a port's process described, which is not trusted.

    Raises `ValueError`, `TypeError`, `LookupError` or `OverflowError` for what describes none.
    """
    names = [safe(str(name), VALUE) for name in answer["names"]]
    sources = [_source(lines) for lines in answer["sources"]]
    arguments = {int(index): _arguments(each) for index, each in answer["arguments"]}
    inputs = np.split(np.asarray(answer["inputs"], np.int64), np.cumsum(answer["counts"])[:-1])
    rows = zip(answer["name"], answer["source"], inputs, answer["value"], strict=True)
    return [
        Operation(
            names[name],
            _checked(np.asarray(value, np.float64)),
            _before(i, given),
            None if source == NOT_ON_STACK else sources[source],
            arguments.get(i, {}),
        )
        for i, (name, source, given, value) in enumerate(rows)
    ]


def _lines(operation: Operation) -> tuple[Source, ...]:
    """The line of an operation, and those that called it."""
    return () if operation.source is None else (operation.source, *operation.source.callers)


def _source(lines: Any) -> Source:
    innermost, *callers = [Source(safe(file, LONGEST_PATH), int(line), safe(code)) for file, line, code in lines]
    return dataclasses.replace(innermost, callers=tuple(callers[:MOST_CALLERS]))


def _arguments(given: Any) -> dict[str, Any]:
    return {name: given[name] for name in ("query", "key", "value", "mask", "scale", "is_causal")}


def _checked(value: np.ndarray) -> np.ndarray:
    if value.size == 0:
        raise ValueError("an operation without a value")
    return value


def _before(index: int, inputs: np.ndarray) -> tuple[int, ...]:
    """The inputs of an operation, all of which ran before it."""
    if not ((inputs >= 0) & (inputs < index)).all():
        raise ValueError(f"operation {index} with the inputs {inputs.tolist()}")
    return tuple(inputs.tolist())
