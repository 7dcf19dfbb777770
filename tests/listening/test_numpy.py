import importlib.util
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.listening.common import named, reached, texts

from transparity_conformance.listening.listen import listen
from transparity_conformance.listening.operation import Operation

PORT = """
import math
from functools import partial, wraps
import numpy as np

slice = None  # a port may use any name
D, N = 12, 3
random = np.random.default_rng(0)
PARAMETERS = {
    name: random.normal(size=shape).astype("f")
    for name, shape in {"wte": (11, D), "wpe": (11, D), "attn": (D, 3 * D), "proj": (D, D)}.items()
}


def logged(function):
    @wraps(function)
    def call(*args):
        return function(*args)
    return call


@logged
def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Linear:
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x @ self.weight


class Model:
    def __init__(self):
        self.__parameters = PARAMETERS
        self.proj = Linear(PARAMETERS["proj"])
        self.heads = partial(self.split, heads=N)

    @staticmethod
    def split(x, heads):
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.__parameters["wte"][tokens] + self.__parameters["wpe"][:length]
        q, k, v = map(self.heads, np.split(x @ self.__parameters["attn"], 3, axis=-1))
        att = np.asarray(q) @ k.swapaxes(-1, -2) / math.sqrt(D // N)
        att[..., np.triu(np.ones((length, length)), 1) == 1] = -np.inf
        y = softmax(att)
        out = np.zeros_like(x)
        for h in range(N):
            out[..., h * 4 : h * 4 + 4] = y[:, h] @ v[:, h]  # this head
        x += out
        return (
            self.proj(x)
            .reshape(2, 5, D)
        )


def lookups(tokens):
    weights = [PARAMETERS[name] for name in ("wte", "wpe")]
    first, second = tuple(weights)
    return first.T, PARAMETERS.get("proj"), second[:2], next(iter(PARAMETERS.values()))


def odd(tokens, scale: float = 2.0):
    def inner(x, *, by): return x * by
    f = lambda x: inner(x, by=scale); g = lambda x: inner(x, by=-scale)
    match tokens.ndim:
        case np.newaxis | 2 if tokens.size > 1:
            x = PARAMETERS["wte"][tokens]
    if (y := f(x)) is not None and 0 < y.size < 1000:
        y[..., 0], z = 1.0, g(y)
    np.exp(y, out=y)
    np.copyto(z, y)
    z[0, slice] -= 1
    count = 0
    count += 1
    table = {}
    table["x"] = z
    table["x"][1:, ::2] *= 2
    return f"{table['x'].sum():.3f}", [*map(f, [z])], (x.dtype, super, count)


def convolved(tokens):
    x = PARAMETERS["wte"][tokens]
    at = (i for i in range(x.shape[1] - 1))
    stacked = np.stack([sum(x[:, i + j] * (j + 1) for j in range(2)) for i in at], *(axis for axis in (1,)))
    return sum(map(softmax, [stacked, stacked * 2]))


erf = np.frompyfunc(math.erf, 1, 1)  # has no module, like the functions of scipy.special


def activated(tokens):
    x = PARAMETERS["wte"][tokens]
    return x * (1 + erf(x / np.sqrt(2)).astype("f"))


def fails(tokens):
    x = PARAMETERS["wte"][tokens]
    return x @ x
"""

IDS = np.arange(10).reshape(2, 5)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    file = tmp_path_factory.mktemp("port") / "numpy_port.py"
    file.write_text(PORT)
    spec = importlib.util.spec_from_file_location("numpy_port", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return type(one) is type(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return type(other) is np.ndarray and one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


@pytest.mark.parametrize("name", ["Model", "lookups", "odd", "convolved", "activated"])
def test_the_result_is_the_same_to_the_bit_and_the_functions_are_put_back(port: ModuleType, name: str) -> None:
    forward = port.Model().forward if name == "Model" else getattr(port, name)
    codes = port.Model.forward.__code__, port.lookups.__code__, port.odd.__code__
    expected = forward(IDS)
    for _ in range(20):  # Python specializes functions that are called often
        forward(IDS)
    result, _ = listen(lambda: forward(IDS))
    assert same(result, expected)
    assert codes == (port.Model.forward.__code__, port.lookups.__code__, port.odd.__code__)
    assert port.Model.forward.__code__ is codes[0]


def heard(port: ModuleType, forward: Callable[[Any], Any]) -> list[Operation]:
    _, operations = listen(lambda: forward(IDS))
    assert all(each.source is not None and each.source.file == port.__file__ for each in operations)
    return operations


def test_every_operation_has_the_line_that_ran_it(port: ModuleType) -> None:
    operations, file = heard(port, port.Model().forward), str(port.__file__)
    assert texts(named(operations, "matmul"), file) == [
        'q, k, v = map(self.heads, np.split(x @ self.__parameters["attn"], 3, axis=-1))',
        "att = np.asarray(q) @ k.swapaxes(-1, -2) / math.sqrt(D // N)",
        *["out[..., h * 4 : h * 4 + 4] = y[:, h] @ v[:, h]  # this head"] * 3,
        "return x @ self.weight",
    ]
    assert texts(named(operations, "exp"), file) == ["e = np.exp(x - x.max(-1, keepdims=True))"]
    assert texts(named(operations, "reshape"), file)[:1] == ["return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)"]
    assert operations[-1].source is not None
    assert operations[-1].source.code == "return x @ self.weight"  # the last reshape has no effect


def test_outputs_in_place_and_writers_are_heard(port: ModuleType) -> None:
    operations = heard(port, port.odd)
    (exponential,), (copied,) = named(operations, "exp"), named(operations, "copyto")
    assert np.array_equal(exponential.value, copied.value)
    assert operations.index(exponential) in reached(operations, copied)
    assert operations.index(copied) in reached(operations, named(operations, "subtract")[0])
    first = named(operations, "multiply")[0]
    assert texts([first], str(port.__file__)) == ["def inner(x, *, by): return x * by"]
    assert np.array_equal(first.value, port.PARAMETERS["wte"][IDS] * 2)


def test_an_exception_is_the_port_s_own_with_its_own_line(port: ModuleType) -> None:
    raised = []
    for call in (lambda: port.fails(IDS), lambda: listen(lambda: port.fails(IDS))):
        with pytest.raises(ValueError, match="matmul") as caught:
            call()
        raised.append(traceback.extract_tb(caught.value.__traceback__)[-1])
    assert (raised[0].filename, raised[0].lineno) == (raised[1].filename, raised[1].lineno)
    assert Path(raised[1].filename).name == "numpy_port.py"
