"""Hypothesis strategies for unusual values: JSON, bytes, names, and Python objects that misbehave."""

import json
import math
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")
QUIETLY = settings(deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
Data = TypeVar("Data", str, bytes)


class Draw(Protocol):
    def __call__(self, strategy: SearchStrategy[T], /) -> T: ...


NUMBERS = (0, 1, -1, 2, 3, 7, 8, 0.5, -0.0, 1e308, 5e-324, 2**31 - 1, 2**31, 2**63, 10**30, 10**400)
NOT_FINITE = (math.nan, math.inf, -math.inf)
NAMES = (
    *("", " ", "x" * 300, "\0", "\x1b[2J", "\u202egpj", "a\nb", "\ud800", "é", "../x", "[bold]x[/]", "<b>", "%s{}"),
    *("tokens", "logits", "source", "target", "__class__", "weight", "head.weight", "decoder.embedding", "config.json"),
)
PRINTABLE = [name for name in NAMES if name.isprintable()]
"""Names that may be written into a file."""

ERRORS = (ValueError, TypeError, KeyError, OSError, RuntimeError, RecursionError, MemoryError, AssertionError)
EXITS = (SystemExit, GeneratorExit, BaseException)

names = st.sampled_from(NAMES)
is_rare = st.sampled_from([False] * 4 + [True])
"""A strategy for booleans, of which one in five is True."""

_leaves = st.sampled_from((*NUMBERS, *NAMES, *NOT_FINITE, None, True, False)) | st.integers() | st.floats() | st.text()
json_values: SearchStrategy[Any] = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=5
)


def spliced(data: Data, pieces: SearchStrategy[Data]) -> SearchStrategy[Data]:
    """Return a strategy that replaces, removes or inserts a piece of `data`, half of the time near the start."""
    places = st.integers(0, len(data)) | st.integers(0, min(len(data), 600))
    sizes = st.integers(0, 40) | st.just(len(data))
    return st.builds(lambda at, size, piece: data[:at] + piece + data[at + size :], places, sizes, pieces)


def repeated(data: Data) -> SearchStrategy[Data]:
    places = st.integers(0, len(data)), st.integers(1, 200)
    return st.builds(lambda at, size: data[:at] + data[at : at + size] * 3 + data[at + size :], *places)


def texts(fields: Any) -> SearchStrategy[str]:
    text = json.dumps(fields)
    wrong = st.sampled_from((",", "::", ": [", "\0", "1e999", "-0", "NaN", "9" * 5000, "1.", "0x1", "[" * 10**5))
    twice = st.just(text[:-1] + "," + text[1:])
    return st.one_of(*[st.just(text)] * 4, spliced(text, wrong | st.text(max_size=5)), twice)


def damaged(data: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that damages a safetensors file or its header, or draws random bytes."""
    lengths = st.integers(0, 2**63 - 1).map(lambda length: length.to_bytes(8, "little") + data[8:])
    pieces = st.binary(max_size=40) | st.integers(1, 40).map(bytes)
    return st.one_of(spliced(data, pieces), repeated(data), lengths, _renumbered(data), st.binary(max_size=100))


def _renumbered(data: bytes) -> SearchStrategy[bytes]:
    """Return a strategy that replaces a number in the JSON header, and updates the header's stored length."""
    found = list(re.finditer(rb"(?<=[\[:, ])\d+(?=[,\]} \n])", data[:4000]))

    def changed(match: re.Match[bytes], value: Any) -> bytes:
        other = data[: match.start()] + json.dumps(value).encode() + data[match.end() :]
        if data[:1] == b"{":
            return other
        length = int.from_bytes(data[:8], "little") + len(other) - len(data)
        return max(0, length).to_bytes(8, "little") + other[8:]

    return st.builds(changed, st.sampled_from(found), json_values) if found else st.just(data)


class Hostile:
    """An object whose methods raise, except while Hypothesis draws it."""

    is_drawn = True

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _raise(self, *_: Any, **__: Any) -> Any:
        if self.is_drawn:
            raise self.error("\x1b[2J" + "x" * 1000)
        return "hostile"

    __str__ = __len__ = __iter__ = __getitem__ = __float__ = __index__ = __array__ = _raise

    def __repr__(self) -> str:
        return str(self._raise())

    def __eq__(self, other: object) -> bool:
        return bool(self._raise()) and self is other

    def __hash__(self) -> int:
        return id(self)


hostile = st.sampled_from(ERRORS).map(Hostile)
_shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4) | st.just((1,) * 20)
arrays: SearchStrategy[Any] = st.one_of(
    _shapes.map(np.zeros),
    npst.arrays(npst.scalar_dtypes(), _shapes),
    st.sampled_from(NOT_FINITE).map(lambda value: np.full((2, 3), value)),
    st.builds(lambda: np.array(["a"])) | st.builds(lambda: np.array([None, object()], dtype=object)),
)
_others: tuple[Callable[[], Any], ...] = (object, lambda: [[1, 2], [3]], lambda: lambda: None, lambda: 10**5000)
objects: SearchStrategy[Any] = st.one_of(
    arrays, hostile, json_values, st.binary(max_size=100), st.sampled_from(_others).map(lambda make: make())
)
"""A strategy for arbitrary Python objects."""


def examples(strategy: SearchStrategy[T], count: int, number: int = 0) -> list[T]:
    """Return up to `count` values, simplest first; equal `number`s draw equal values."""
    found: list[T] = []

    @seed(number)
    @settings(QUIETLY, max_examples=count)
    @given(st.data())
    def take(data: st.DataObject) -> None:
        found.append(data.draw(strategy))

    take()
    return found
