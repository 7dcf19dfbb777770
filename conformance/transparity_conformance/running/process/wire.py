"""The messages between the checker and the process of a port.

The port trusts the checker, so requests are pickled. The checker does not trust the port, so an answer is only JSON and
the bytes of arrays, which cannot run code. Other objects stay in the port's process, and the checker gets a number for
each of them.
"""

import functools
import json
import math
import os
import pickle
import socket
import struct
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from transparity.text import VALUE, safe
from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import LONGEST_PATH, Operation, Source
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.storage.on_disk import OnDisk

HEADER = struct.Struct("<QQ")
"""The header of an answer: the number of bytes of JSON, and the number of bytes of arrays."""

LARGEST_TEXT = 2**26

LARGEST_IN_MEMORY = 2**26
"""The largest number of bytes of an answer in memory; larger answers are stored in a file."""

MISSHAPEN = 2**26
"""The number of bytes by which an answer may exceed its expected size, so that a wrong shape can be reported."""

PATIENCE = 1.0
"""If no byte arrives for this number of seconds, the checker tests whether the port's process still runs."""

DEPTH = 8
"""The largest depth of nested containers in an answer. Deeper containers stay in the port's process."""


class Closed(Exception):  # noqa: N818 - it is always caught
    """The other process has closed the connection."""


class Kept:
    """A value that must stay in the port's process, even if it could be sent."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Recorded(NamedTuple):
    """The result of a recorded call, with the recorded operations."""

    result: Any
    operations: list[Operation]


class Handle:
    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = int(number), str(kind)

    def __repr__(self) -> str:
        return f"an object of the type {self.kind!r}"


def with_handles(value: Any, change: Callable[[Handle], Any]) -> Any:
    """Return the arguments of a request, with each handle replaced by `change(handle)`."""
    if isinstance(value, Handle):
        return change(value)
    if isinstance(value, dict):
        return {name: with_handles(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(with_handles(item, change) for item in value)
    return value


def send_request(connection: socket.socket, request: Any) -> None:
    body = pickle.dumps(request, protocol=pickle.HIGHEST_PROTOCOL)
    connection.sendall(struct.pack("<Q", len(body)))
    connection.sendall(body)


def receive_request(connection: socket.socket) -> bytes:
    (length,) = struct.unpack("<Q", b"".join(_chunks(connection, 8)))
    return b"".join(_chunks(connection, length))


def encoded(answer: Any, keep: Callable[[Any], int], largest: int) -> tuple[bytes, list[np.ndarray]]:
    """Encode an answer as JSON and arrays; `keep` stores an object that cannot be sent, and returns the object's
    number.

    Raises `ValueError` if the arrays have more than `largest` bytes. The size is tested before copying, because a view
    of one number may claim petabytes.
    """
    arrays: list[np.ndarray] = []
    taken = 0

    def node(value: Any, depth: int = 0) -> Any:
        nonlocal taken
        if value is None or isinstance(value, bool | str | int | float):
            return {"value": value}
        if isinstance(value, Recorded | Backward):
            rest = [value.result] if isinstance(value, Recorded) else [value.gradients, value.passes]
            return {
                "recorded": [table_of(value.operations), node([each.value for each in value.operations]), node(rest)]
            }
        if depth < DEPTH and isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {"dict": [[key, node(item, depth + 1)] for key, item in value.items()]}
        if depth < DEPTH and isinstance(value, tuple | list):
            return {"tuple" if isinstance(value, tuple) else "list": [node(item, depth + 1) for item in value]}
        what, kept = "", value.value if isinstance(value, Kept) else value
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            taken += math.prod(np.shape(value)) * getattr(value.dtype, "itemsize", 1)
            if taken > largest:
                raise ValueError(f"the arrays have {taken:,} bytes; expected at most {largest:,}")
            array = as_numbers(value)
            if array.dtype.kind in "fiub":
                arrays.append(array)
                return {"array": [array.dtype.str.lstrip("<>=|"), list(array.shape)]}
            what = f" of {str(array.dtype)[:60]}"
        return {"handle": [keep(kept), f"{type(kept).__name__[:60]}{what}"]}

    return json.dumps(node(answer)).encode(), arrays


def send_answer(connection: socket.socket, text: bytes, arrays: list[np.ndarray]) -> None:
    connection.sendall(HEADER.pack(len(text), sum(array.nbytes for array in arrays)))
    connection.sendall(text)
    for array in arrays:  # copy one array at a time, because a large model's gradients take much memory
        connection.sendall(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data)


def receive_answer(
    connection: socket.socket,
    deadline: float,
    largest: int,
    is_running: Callable[[], bool],
    handle: Callable[..., Handle] = Handle,
) -> Any:
    """Receive an answer from the port's process. `handle` makes the handle of an object that stays in the process.

    Raises `Closed` if the port's process has ended, and `TimeoutError` after `deadline` (of `time.monotonic`). Raises
    `ValueError` if the answer is malformed, or if the arrays have more than `largest` bytes. `is_running` tests whether
    the process still runs, because a fork of the process may keep the connection open.
    """
    chunks = functools.partial(_chunks, connection, deadline=deadline, is_running=is_running)
    length, size = HEADER.unpack(b"".join(chunks(HEADER.size)))
    if length > LARGEST_TEXT or size > largest:
        raise ValueError(f"the reply has {max(length, size):,} bytes; expected at most {largest:,}")
    text = json.loads(b"".join(chunks(length)))
    decoder = _Decoder(chunks, size, handle)
    answer = decoder.value(text)
    if decoder.left:
        raise ValueError(f"the arrays have fewer than {size:,} bytes")
    return answer


def _chunks(
    connection: socket.socket, length: int, deadline: float | None = None, is_running: Callable[[], bool] = lambda: True
) -> Iterator[bytes]:
    """Receive `length` bytes, and yield them in pieces; raise the exceptions of `receive_answer`."""
    left = length
    while left:
        if deadline is not None:
            connection.settimeout(min(PATIENCE, max(0.001, deadline - time.monotonic())))
        try:
            chunk = connection.recv(min(left, 2**20))
        except TimeoutError:
            if not is_running():
                raise Closed from None
            if deadline is None or time.monotonic() >= deadline:
                raise
            continue
        if not chunk:
            raise Closed
        left -= len(chunk)
        yield chunk


def largest_answer() -> int:
    """Return an eighth of the memory, the largest size of an answer, because the checker converts answers to
    float64."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


class _Decoder:
    """Decodes an answer whose arrays have `size` bytes together; `chunks(n)` yields the next n bytes in pieces."""

    def __init__(self, chunks: Callable[[int], Iterator[bytes]], size: int, handle: Callable[..., Handle]) -> None:
        self.chunks, self.size, self.left, self.handle = chunks, size, size, handle

    def value(self, node: Any, depth: int = 0) -> Any:
        ((kind, content),) = node.items()
        if kind == "value":
            return content
        if kind == "dict":
            is_large = self.size > LARGEST_IN_MEMORY and depth == 1 and len(content) > 1
            found: Any = OnDisk() if is_large and all("array" in item for _, item in content) else {}
            for key, item in content:
                found[str(key)] = self.value(item, depth + 1)
            return found
        if kind in ("tuple", "list"):
            items = [self.value(item, depth + 1) for item in content]
            return tuple(items) if kind == "tuple" else items
        if kind == "array":
            return self.array(*content)
        if kind == "handle":
            return self.handle(*content)
        if kind == "recorded":
            table, values, rest = content
            return recorded(operations_of(table, self.value(values)), *self.value(rest))
        raise ValueError(f"a value has the unknown kind {kind!r}")

    def array(self, code: str, sizes: list[int]) -> np.ndarray:
        dtype, shape = np.dtype("<" + code), tuple(int(size) for size in sizes)
        if dtype.kind not in "fiub" or any(size < 0 for size in shape):
            says = "expected floats, integers or booleans, and no negative size"
            raise ValueError(f"an array has the dtype {dtype} and the shape {shape}; {says}")
        value = np.empty(shape, dtype)
        if value.nbytes > self.left:
            raise ValueError(f"the arrays have more than {self.size:,} bytes")
        self.left -= value.nbytes
        place, begin = value.reshape(-1).view(np.uint8), 0
        for chunk in self.chunks(value.nbytes):
            place[begin : begin + len(chunk)] = np.frombuffer(chunk, np.uint8)
            begin += len(chunk)
        return value


Index = Annotated[int, Meta(ge=0)]


class Table(msgspec.Struct):
    """Recorded operations without their values. Each name and stack, which many operations share, is stored once."""

    names: list[str]
    sources: list[tuple[str, int, str, tuple[int, int] | None]]
    stacks: list[list[Index]]
    """For each stack, the indices of its sources."""
    rows: list[tuple[Index, Index, list[Index]]]
    """For each operation, the indices of its name, of its stack, and of the operations that computed its inputs."""


def table_of(operations: Sequence[Operation]) -> dict[str, list[Any]]:
    names: dict[Hashable, int] = {}
    sources: dict[Hashable, int] = {}
    stacks: dict[Hashable, int] = {}
    index_of: Callable[[Any, dict[Hashable, int]], int] = lambda key, table: table.setdefault(key, len(table))
    rows = []
    for each in operations:
        lines = ((line.file, line.line, line.code, line.columns) for line in each.stack)
        stack = tuple([index_of(line, sources) for line in lines])
        rows.append((index_of(each.name, names), index_of(stack, stacks), each.inputs))
    return {"names": list(names), "sources": list(sources), "stacks": list(stacks), "rows": rows}


def operations_of(table: Any, values: Sequence[Any]) -> list[Operation]:
    """Decode the operations that a port's process has sent; check everything, because the process is not trusted."""
    told = msgspec.convert(table, Table)
    names = [safe(name, VALUE) for name in told.names]
    sources = [
        Source(safe(file, LONGEST_PATH), line, safe(code), columns) for file, line, code, columns in told.sources
    ]
    stacks = [tuple(sources[index] for index in stack) for stack in told.stacks]
    found: list[Operation] = []
    for (name, stack, inputs), value in zip(told.rows, values, strict=True):
        if any(index >= len(found) for index in inputs):
            raise ValueError(f"operation {len(found)} has the inputs {inputs}")
        found.append(Operation(names[name], _value(value), tuple(inputs), stacks[stack]))
    return found


def recorded(operations: list[Operation], *rest: Any) -> Recorded | Backward:
    if len(rest) == 1:
        return Recorded(rest[0], operations)
    gradients = [None if each is None else _value(each) for each in rest[0]]
    for each, gradient, _ in zip(operations, gradients, rest[1], strict=True):
        if gradient is not None and gradient.shape != each.value.shape:
            raise ValueError(f"a gradient has the shape {gradient.shape}; its activation has {each.value.shape}")
    return Backward(operations, gradients, [bool(each) for each in rest[1]])


def _value(value: Any) -> np.ndarray:
    array = np.asarray(value, np.float64)
    if array.size == 0:
        raise ValueError("an operation has no value")
    return array
