"""A model's parameters: arrays by flat name, with matrices as `(out, in)`, and their safetensors files.

Initialization, checks, loading and saving all use the names and shapes of `parameter_shapes`.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from transparity.config import TransformerConfig
from transparity.errors import ConfigError, ParameterError, as_array, shown
from transparity.limits.files import file_size, read_header
from transparity.limits.lazy import InBlocks
from transparity.limits.memory import check_fits
from transparity.parts.model import model
from transparity.parts.part import Shapes
from transparity.text import VALUE, reason, safe

Parameters = Mapping[str, np.ndarray]

RENAMED = {"router_correction": "router_score_bias", "log_rate": "A_log", "time_step_bias": "dt_bias", "skip": "D"}
"""The last parts of parameter names in files of earlier versions, each with its current name."""

FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64"}


def parameter_shapes(config: TransformerConfig) -> Shapes:
    """Return the shape of every parameter, by name, in the order of the forward pass."""
    return dict(model(config).parameters)


def shared(config: TransformerConfig, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `parameters`. If both stacks share an embedding, the result has it under the names of both stacks."""
    if not config.shared_embedding:
        return parameters
    return {**parameters, "decoder.token_embedding.weight": parameters["encoder.token_embedding.weight"]}


def is_learned(name: str) -> bool:
    """Return whether the parameter has a gradient; running statistics and `router_score_bias` have no gradient."""
    return not name.endswith((".running_mean", ".running_var", ".router_score_bias"))


def initialize_parameters(config: TransformerConfig, seed: int = 0) -> dict[str, np.ndarray]:
    """Return initial parameters in float32; matrices are uniform within Glorot's bound (document 003).

    Gains of norms, the `D` of Mamba-2 and running variances are 1. All other vectors are 0, including gains that the
    norm adds to 1. Raises `ConfigError` if the parameters do not fit into memory.
    """
    random, shapes = np.random.default_rng(seed), parameter_shapes(config)
    check_fits("The model", 4 * sum(map(math.prod, shapes.values())), ConfigError)
    parameters = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            bound = math.sqrt(6 / (sum(shape[:2]) * math.prod(shape[2:])))
            parameters[name] = random.uniform(-bound, bound, shape).astype(np.float32)
        else:
            gains = ("norm.weight",) if config.norm_gain == "weight" else ("gated_norm.weight",)
            ones = name.endswith((*gains, "running_var", ".D"))
            parameters[name] = np.full(shape, 1 if ones else 0, np.float32)
    return parameters


def check_parameters(config: TransformerConfig, parameters: Mapping[str, Any]) -> None:
    """Raise `ParameterError` unless `parameters` has the names and shapes of `config`, and valid float32 values."""
    if not isinstance(config, TransformerConfig):
        raise ConfigError(f"The configuration is {shown(config)}; it should be a TransformerConfig.")
    if not isinstance(parameters, Mapping):
        raise ParameterError(f"The parameters are {shown(parameters)}; they should be arrays by name.")
    for name, shape in check_names(config, parameters).items():
        given: Any = parameters[name]
        value: Any = given if isinstance(given, InBlocks) else as_array(f"Parameter {name!r}", given, ParameterError)
        _check_shape(name, value.shape, shape)
        _check_dtype(repr(name), value.dtype.name)
        largest = np.finfo(np.float32).max
        blocks = (part for _, part in value.blocks()) if isinstance(value, InBlocks) else (value,)
        if not all(-largest <= block.min(initial=0) and block.max(initial=0) <= largest for block in blocks):
            value = np.asarray(value)
            where = tuple(int(index) for index in np.argwhere(~(np.abs(value) <= largest))[0])
            raise ParameterError(f"Parameter {name!r} is {value[where]} at {list(where)}; it should be finite.")
        if name.endswith("running_var") and (value < 0).any():
            raise ParameterError(f"Parameter {name!r} has the value {value.min()}; a variance should be ≥ 0.")


def check_names(config: TransformerConfig, names: Collection[str]) -> Shapes:
    """Return the parameter shapes of `config`; raise `ParameterError` if `names` has missing or unknown names."""
    shapes = parameter_shapes(config)
    for name in names:
        if name not in shapes:
            close = difflib.get_close_matches(safe(name, 2 * VALUE), shapes, 1)
            hint = f"; the nearest name is {close[0]!r}" if close else ""
            raise ParameterError(f"Parameter {shown(name)} does not belong to this configuration{hint}.")
    for name, shape in shapes.items():
        if name not in names:
            raise ParameterError(f"Parameter {name!r} is missing; it should have the shape {shape}.")
    return shapes


def _check_shape(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    if shape != expected:
        transposed = " (it looks transposed)" if shape == expected[::-1] else ""
        raise ParameterError(f"Parameter {name!r} has the shape {shown(shape)}, not {expected}{transposed}.")


def _check_dtype(name: str, dtype: str) -> None:
    if dtype not in FLOATS.values():
        raise ParameterError(f"Parameter {name} has the dtype {dtype}; expected one of {', '.join(FLOATS.values())}.")


def save_parameters(path: str | os.PathLike[str], parameters: Parameters) -> None:
    """Write a safetensors file; raise `ParameterError` for a dtype other than floats, or if writing fails."""
    arrays = {name: as_array(f"Parameter {shown(name)}", value, ParameterError) for name, value in parameters.items()}
    for name, value in arrays.items():
        _check_dtype(shown(name), value.dtype.name)
    try:
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path)
    except (OSError, SafetensorError, TypeError, ValueError) as error:
        raise ParameterError(f"{path} cannot be written as a safetensors file: {reason(error)}.") from None


def load_parameters(path: str | os.PathLike[str], config: TransformerConfig | None = None) -> dict[str, np.ndarray]:
    """Read a safetensors file; if `config` is given, check that the file has the parameters of `config`.

    Raises `ParameterError` if the file is missing or invalid, or if NumPy lacks the dtype of a tensor.
    """
    read_header(path, ParameterError)
    try:
        with safe_open(path, framework="numpy") as file:
            names = {_current(name): name for name in file.keys()}  # noqa: SIM118 - it is no mapping
            if config is not None:
                check_names(config, names)
            for name, stored in names.items():
                dtype = file.get_slice(stored).get_dtype()
                _check_dtype(f"{shown(name)} of {path}", FLOATS.get(dtype, dtype))
            check_fits(f"{path}", file_size(path, ParameterError), ParameterError)
            parameters = {name: file.get_tensor(stored) for name, stored in names.items()}
    except (OSError, SafetensorError, TypeError, ValueError, OverflowError, MemoryError) as error:
        if isinstance(error, ParameterError):
            raise
        raise ParameterError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None
    if config is not None:
        check_parameters(config, parameters)
    return parameters


def _current(name: str) -> str:
    scope, dot, last = name.rpartition(".")
    return scope + dot + RENAMED.get(last, last)


@contextmanager
def open_parameters(path: str | os.PathLike[str], config: TransformerConfig) -> Iterator[Mapping[str, Any]]:
    """Return a context manager that yields the parameters of `config` in a safetensors file, by name.

    Slicing a parameter reads only the slice; infinite numbers and NaN are allowed. Raises `ParameterError` as
    `load_parameters` does.
    """
    read_header(path, ParameterError)
    try:
        with safe_open(path, framework="numpy") as file:
            slices = {_current(name): file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            for name, shape in check_names(config, slices).items():
                _check_shape(name, tuple(slices[name].get_shape()), shape)
                dtype = slices[name].get_dtype()
                _check_dtype(f"{shown(name)} of {path}", FLOATS.get(dtype, dtype))
            yield slices
    except (OSError, SafetensorError) as error:
        raise ParameterError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None
