"""Values that nobody would write: as JSON, as bytes, as names, and as Python objects that misbehave."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

NUMBERS: tuple[Any, ...] = (0, 1, -1, 2, 3, 7, 8, 0.5, -0.0, 1e308, 5e-324, 2**31 - 1, 2**31, 2**63, 10**30, 10**400)
NOT_FINITE = (math.nan, math.inf, -math.inf)
NAMES = (
    *("", " ", "x" * 300, "\0", "\x1b[2J", "\u202egpj", "a\nb", "\ud800", "é", "../x", "[bold]x[/]", "<b>", "%s{}"),
    *("tokens", "logits", "source", "target", "__class__", "weight", "head.weight", "decoder.embedding", "config.json"),
)


def wild_json(random: Random, depth: int = 2) -> Any:
    """A value that JSON can hold."""
    choice = random.randrange(10)
    if choice < 4:
        return random.choice(NUMBERS)
    if choice < 6:
        return random.choice(NAMES)
    if choice < 8 or depth == 0:
        return random.choice((None, True, False, *NOT_FINITE))
    items = [wild_json(random, depth - 1) for _ in range(random.randrange(4))]
    return items if choice == 8 else {random.choice(NAMES): item for item in items}


def wild_text(random: Random, fields: Any) -> str:
    """`fields` as JSON with something wrong in it, or not JSON at all."""
    text = json.dumps(fields)
    damage = random.randrange(16)
    if damage == 0:
        return text[: random.randrange(len(text))]
    if damage == 1:
        return text.replace(":", random.choice((",", "::", ": [", ":\x00")), 1)
    if damage == 2:
        return "[" * random.choice((10, 10**3, 10**5)) + text
    if damage == 3:
        return re.sub(r"\d+", lambda _: random.choice(("1e999", "-0", "NaN", "9" * 5000, "1.", "0x1")), text, count=2)
    if damage == 4:
        return text[:-1] + "," + text[1:]  # every field twice
    return text


def damaged(random: Random, data: bytes) -> bytes:
    """Bytes with one piece changed, cut out, repeated or put in."""
    where = random.randrange(len(data) if random.random() < 0.5 else min(len(data), 600)) if data else 0
    size = random.randrange(1, 40)
    ways: tuple[Callable[[], bytes], ...] = (
        lambda: data[:where] + bytes([data[where] ^ 1 << random.randrange(8)]) + data[where + 1 :] if data else b"",
        lambda: data[:where],
        lambda: data[:where] + data[where + size :],
        lambda: data[:where] + random.randbytes(size) + data[where:],
        lambda: data + random.randbytes(size),
        lambda: data[:where] + data[where : where + size] * 3 + data[where + size :],
        lambda: data[:where] + b"\0" * size + data[where + size :],
        lambda: (random.getrandbits(63) >> random.randrange(63)).to_bytes(8, "little") + data[8:],
        lambda: _other_number(random, data),
        lambda: random.randbytes(random.randrange(100)),
        lambda: b"",
    )
    return random.choice(ways)()


def _other_number(random: Random, data: bytes) -> bytes:
    """Another number in JSON; the length of a safetensors header is corrected."""
    found = list(re.finditer(rb"(?<=[\[:, ])\d+(?=[,\]} \n])", data[:4000]))
    if not found:
        return data
    chosen = random.choice(found)
    number = json.dumps(wild_json(random, 1)).encode()
    changed = data[: chosen.start()] + number + data[chosen.end() :]
    if data[:1] == b"{":
        return changed
    length = int.from_bytes(data[:8], "little") + len(changed) - len(data)
    return max(0, length).to_bytes(8, "little") + changed[8:]


class Hostile:
    """Raises one of many errors wherever it is asked."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise self.error("\x1b[2J" + "x" * 1000)

    __repr__ = __str__ = __len__ = __iter__ = __getitem__ = __float__ = __index__ = __array__ = __eq__ = _raise
    __hash__ = object.__hash__


DTYPES = ("int8", "uint64", "bool", "complex64", "float16", "datetime64[s]")

ERRORS = (ValueError, TypeError, KeyError, OSError, RuntimeError, RecursionError, MemoryError, AssertionError)
EXITS = (SystemExit, GeneratorExit, BaseException)


def wild_object(random: Random) -> Any:
    """A Python object of any kind."""
    arrays: tuple[Callable[[], Any], ...] = (
        lambda: np.zeros(random.choice(((), (0,), (2, 3), (0, 4), (1,) * 20))),
        lambda: np.array(["a"]),
        lambda: np.array([None, object()], dtype=object),
        lambda: np.array([[1, 2], [3, 4]], random.choice(DTYPES)),
        lambda: np.full((2, 3), random.choice(NOT_FINITE)),
        lambda: [[1, 2], [3]],
        lambda: Hostile(random.choice(ERRORS)),
        object,
        lambda: lambda: None,
        lambda: b"\xff" * random.randrange(100),
        lambda: 10 ** random.choice((3, 30, 5000)),
        lambda: wild_json(random),
    )
    return random.choice(arrays)()
