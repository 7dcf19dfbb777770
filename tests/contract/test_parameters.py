import dataclasses
from pathlib import Path

import numpy as np
from tests.looping import for_each

from transparity import (
    PRESETS,
    TransformerConfig,
    check_parameters,
    initialize_parameters,
    load_parameters,
    parameter_shapes,
    preset,
    save_parameters,
)
from transparity.parameters import RENAMED, open_parameters
from transparity.protocol import Backend, Harness
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.report.comparison import as_numbers

CONFIGS = {name: preset(name).resized() for name in PRESETS}
CONFIGS["lone encoder"] = dataclasses.replace(CONFIGS["translation"], architecture="encoder")
CONFIGS["batch norm"] = dataclasses.replace(CONFIGS["notes-lm"], norm="batch")
CONFIGS["tied"] = dataclasses.replace(MODELS["marian"], padding="token")

each_config = for_each("config", CONFIGS.values())


def numbered(config: TransformerConfig) -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)
    return {name: random.random(shape, np.float32) for name, shape in parameter_shapes(config).items()}


@each_config
def test_initialised_parameters_are_those_of_the_configuration(config: TransformerConfig) -> None:
    parameters = initialize_parameters(config)
    check_parameters(config, parameters)
    assert list(parameters) == list(parameter_shapes(config))
    assert {value.dtype for value in parameters.values()} == {np.dtype(np.float32)}


def test_a_seed_is_a_model() -> None:
    first, again, other = (initialize_parameters(CONFIGS["notes-lm"], seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["head.weight"], other["head.weight"])


def test_gains_and_variances_begin_at_one_and_shifts_at_zero() -> None:
    parameters = initialize_parameters(CONFIGS["batch norm"])
    ones = {name for name, value in parameters.items() if (value == 1).all()}
    zeros = {name for name, value in parameters.items() if (value == 0).all()}
    assert ones == {name for name in parameters if name.endswith(("norm.weight", "running_var"))}
    assert zeros == {name for name in parameters if name.endswith(("bias", "running_mean"))}


@for_each("dtype", ["float16", "float32", "float64"])
@each_config
def test_a_file_gives_back_the_same_parameters_with_their_dtype_and_orientation(
    config: TransformerConfig, dtype: str, tmp_path: Path
) -> None:
    parameters = {name: np.asfortranarray(value.astype(dtype)) for name, value in numbered(config).items()}
    save_parameters(tmp_path / "parameters.safetensors", parameters)
    for asked in (config, None):
        loaded = load_parameters(tmp_path / "parameters.safetensors", asked)
        assert set(loaded) == set(parameters)
        assert {value.dtype for value in loaded.values()} == {np.dtype(dtype)}
        assert all(np.array_equal(loaded[name], value) for name, value in parameters.items())


@each_config
def test_a_backend_gives_back_what_it_was_given(harness: Harness, config: TransformerConfig) -> None:
    parameters = numbered(config)
    held = harness.module("transformer.Transformer", config, parameters, dtype="float32").parameters()
    assert set(held) == set(parameters)
    assert all(np.array_equal(held[name], value) for name, value in parameters.items())


def _aligned(array: np.ndarray) -> np.ndarray:
    """Return a copy of `array` at an aligned address, which XLA reads without copying."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


@for_each("dtype", ["float32", "float64"])
def test_a_model_stays_as_it_is_when_what_it_was_given_is_written_to(backend: Backend, dtype: str) -> None:
    config = CONFIGS["notes-lm"]
    parameters = {name: _aligned(value.astype(dtype)) for name, value in numbered(config).items()}
    forward = backend(config, parameters, dtype=dtype)
    before = {name: as_numbers(value) for name, value in forward(tokens=[[1, 2, 3]]).items()}
    for value in parameters.values():
        value[...] = 0.5
    after = forward(tokens=[[1, 2, 3]])
    assert all(np.array_equal(as_numbers(after[name]), value) for name, value in before.items())


def test_a_file_with_the_old_names_of_parameters_is_read(tmp_path: Path) -> None:
    config = MODELS["mamba2"]
    parameters = initialize_parameters(config)
    old = {now: before for before, now in RENAMED.items()}
    renamed = {}
    for name, value in parameters.items():
        scope, _, last = name.rpartition(".")
        renamed[f"{scope}.{old.get(last, last)}"] = value
    assert set(renamed) != set(parameters)
    save_parameters(tmp_path / "old.safetensors", renamed)
    assert set(load_parameters(tmp_path / "old.safetensors", config)) == set(parameters)
    with open_parameters(tmp_path / "old.safetensors", config) as opened:
        assert set(opened) == set(parameters)
