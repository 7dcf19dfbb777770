"""The NumPy column's `transparity.protocol.Harness`: access to the column's functions and modules by name."""

from __future__ import annotations

import functools
import importlib
import platform
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.taps import recording
from transparity_numpy.arithmetic.functional import nest
from transparity_numpy.layers.sequential import layer
from transparity_numpy.mixers import attention
from transparity_numpy.port import build
from transparity_numpy.state.context import Context
from transparity_numpy.transformer import transformer


class NumpyModule:
    """A `transparity.protocol.Module`: a function of the column with its configuration and parameters."""

    def __init__(self, function: Callable[..., Any], config: TransformerConfig, parameters: Arrays, dtype: str) -> None:
        self.function, self.config, self.dtype = function, config, dtype
        self.state = {name: np.asarray(value).astype(dtype) for name, value in parameters.items()}
        self.training: dict[str, bool] = {}

    def __call__(
        self, *arrays: Any, context: Mapping[str, Any] | None = None, taps: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        recorded: dict[str, Any] = {}
        arrays = tuple(_in_dtype(array, self.dtype) for array in arrays)
        options: dict[str, Any] = {"tap": recording(recorded)} | self.training
        if context is None:
            named |= options
        else:
            given = {name: _in_dtype(value, self.dtype) for name, value in context.items()}
            named["context"] = Context(**{"mask": None, "positions": None, "is_token": None} | given | options)
        parameters = self.state if self.function is transformer else nest(self.state)
        result = self.function(self.config, parameters, *arrays, **named)
        self.state |= {name: value for name, value in recorded.items() if name in self.state}
        if taps is not None:
            taps |= recorded
        return result

    def use_batch_statistics(self) -> None:
        self.training = {"training": True}

    def parameters(self) -> dict[str, np.ndarray]:
        return dict(self.state)


def function(name: str, *, dtype: str | None = None, device: str = "cpu") -> Callable[..., Any]:
    dtype = build.checked_dtype(dtype, device)
    found = _named(name)

    def on_arrays(*arrays: Any, **named: Any) -> Any:
        keywords = {name: _in_dtype(array, dtype) for name, array in named.items()}
        return found(*(_in_dtype(array, dtype) for array in arrays), **keywords)

    return functools.wraps(found)(on_arrays)


def module(
    name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str | None = None, device: str = "cpu"
) -> NumpyModule:
    return NumpyModule(_named(name), config, parameters, build.checked_dtype(dtype, device))


def einsum(subscripts: str, *arrays: np.ndarray) -> np.ndarray:
    result: np.ndarray = np.einsum(subscripts, *arrays)
    return result


def describe(device: str) -> dict[str, str]:
    return {"numpy": np.__version__, "device": platform.machine(), "matmul": "full precision"}


def pinned() -> AbstractContextManager[None]:
    return nullcontext()


def _attention(query: Any, key: Any, value: Any, mask: Any, *, config: TransformerConfig, **named: Any) -> Any:
    sinks, given = named.pop("sinks", None), {"mask": mask, "positions": None, "is_token": None} | named
    return attention.attention(config, query, key, value, Context(**given), sinks)


PARTS: dict[str, Callable[..., Any]] = {
    "layers.EncoderLayer": layer,
    "layers.DecoderLayer": layer,
    "mixers.attention.attention": _attention,
}
"""The functions whose names or arguments in this column differ from the protocol, by the protocol's name."""


def _named(name: str) -> Callable[..., Any]:
    """Return the function for a name of the protocol: `attention.self_attention` for `attention.SelfAttention`."""
    if name in PARTS:
        return PARTS[name]
    file, _, attribute = name.rpartition(".")
    snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", attribute).lower()
    found: Callable[..., Any] = getattr(importlib.import_module(f"transparity_numpy.{file}"), snake_case)
    return found


def _in_dtype(value: Any, dtype: str) -> Any:
    return value.astype(dtype) if isinstance(value, np.ndarray) and value.dtype.kind == "f" else value
