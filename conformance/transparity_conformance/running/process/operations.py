"""Operations that were heard in the process of a port, as lists and arrays for the wire."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.listening.source import LONGEST_PATH
from transparity_conformance.report.text import VALUE, safe


def described(operations: Sequence[Operation]) -> dict[str, Any]:
    """Names, sources and inputs in tables, for there are many operations and few lines; and the values."""
    names: dict[Hashable, int] = {}
    sources: dict[Source, int] = {}
    stacks: dict[tuple[int, ...], int] = {}
    for each in operations:
        stack = tuple(sources.setdefault(source, len(sources)) for source in each.stack)
        stacks.setdefault(stack, len(stacks))
    return {
        "name": np.array([names.setdefault(each.name, len(names)) for each in operations], np.int64),
        "stack": np.array([stacks[tuple(sources[line] for line in each.stack)] for each in operations], np.int64),
        "inputs": np.array([index for each in operations for index in each.inputs], np.int64),
        "counts": np.array([len(each.inputs) for each in operations], np.int64),
        "value": [each.value for each in operations],
        "names": list(names),
        "sources": [[each.file, each.line, each.code] for each in sources],
        "stacks": [list(stack) for stack in stacks],
    }


def received(answer: Any) -> list[Operation]:
    """The operations that a port's process described, which is not trusted.

    Raises `ValueError`, `TypeError`, `LookupError` or `OverflowError` for what describes none.
    """
    names = [safe(str(name), VALUE) for name in answer["names"]]
    sources = [Source(safe(file, LONGEST_PATH), int(line), safe(code)) for file, line, code in answer["sources"]]
    stacks = [tuple(sources[_checked_index(index)] for index in stack) for stack in answer["stacks"]]
    inputs = np.split(np.asarray(answer["inputs"], np.int64), np.cumsum(answer["counts"])[:-1])[: len(answer["name"])]
    rows = zip(answer["name"], answer["stack"], inputs, answer["value"], strict=True)
    return [
        Operation(
            names[name],
            _checked(np.asarray(value, np.float64)),
            _before(i, given),
            stacks[_checked_index(stack)],
        )
        for i, (name, stack, given, value) in enumerate(rows)
    ]


def _checked_index(index: Any) -> int:
    """An index from the front."""
    if int(index) < 0:
        raise IndexError(f"the number {index} of a line")
    return int(index)


def _checked(value: np.ndarray) -> np.ndarray:
    if value.size == 0:
        raise ValueError("an operation without a value")
    return value


def _before(index: int, inputs: np.ndarray) -> tuple[int, ...]:
    """The inputs of an operation, all of which ran before it."""
    if not ((inputs >= 0) & (inputs < index)).all():
        raise ValueError(f"operation {index} with the inputs {inputs.tolist()}")
    return tuple(inputs.tolist())
