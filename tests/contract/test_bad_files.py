"""The error for a file without valid parameters is one sentence, and nothing is ever unpickled."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.looping import for_each

from transparity import initialize_parameters, load_parameters, preset, save_parameters
from transparity.errors import ParameterError

Refused = Callable[..., AbstractContextManager[None]]

CONFIG = preset("notes-lm").resized(num_decoder_layers=1)
PARAMETERS = initialize_parameters(CONFIG)


def safetensors(header: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Return the bytes of a safetensors file with this header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one_tensor(dtype: str, size: int) -> bytes:
    return safetensors({"head.bias": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}, bytes(size))


ENTRY = '"head.bias": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
TWICE = struct.pack("<Q", 2 * len(ENTRY) + 3) + f"{{{ENTRY},{ENTRY}}}".encode() + bytes(4)


@for_each(
    "content",
    [
        b"",
        b"PK",
        b"This is a text, and no tensor is in it.",
        pickle.dumps({"head.bias": 1.0}),
        struct.pack("<Q", 2**60),
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(7)),
        safetensors({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}}, bytes(8)),
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
        TWICE,
    ],
)
def test_a_file_that_is_not_safetensors(tmp_path: Path, refused: Refused, content: bytes) -> None:
    path = tmp_path / "parameters.safetensors"
    path.write_bytes(content)
    with refused(ParameterError, f"{path} cannot be read as a safetensors file: "):
        load_parameters(path)


@for_each("share", [0.001, 0.1, 0.5, 0.999])
def test_a_file_that_was_cut_off(tmp_path: Path, refused: Refused, share: float) -> None:
    path = tmp_path / "parameters.safetensors"
    save_parameters(path, PARAMETERS)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with refused(ParameterError, f"{path} cannot be read as a safetensors file: "):
        load_parameters(path, CONFIG)


@for_each(("dtype", "size"), [("BF16", 2), ("F8_E4M3", 1), ("I32", 4), ("BOOL", 1)])
def test_a_tensor_of_a_dtype_that_parameters_do_not_have(
    tmp_path: Path, refused: Refused, dtype: str, size: int
) -> None:
    path = tmp_path / "parameters.safetensors"
    path.write_bytes(one_tensor(dtype, size))
    says = f"Parameter 'head.bias' of {path} has the dtype {dtype}; expected one of float16, float32, float64."
    with refused(ParameterError, says):
        load_parameters(path)


def test_a_file_that_does_not_exist(tmp_path: Path, refused: Refused) -> None:
    with refused(ParameterError, f"There is no file {tmp_path / 'none'}."):
        load_parameters(tmp_path / "none")


def test_a_folder(tmp_path: Path, refused: Refused) -> None:
    with refused(ParameterError, f"{tmp_path} is a folder; expected a file."):
        load_parameters(tmp_path)


def test_no_path_at_all(refused: Refused) -> None:
    with refused(ParameterError, "None cannot be read: "):
        load_parameters(None)  # type: ignore[arg-type]


def test_a_file_of_another_configuration(tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "parameters.safetensors"
    save_parameters(path, PARAMETERS)
    with refused(ParameterError, "Parameter 'decoder.layers.1.self_attention.query.weight' is missing; it should"):
        load_parameters(path, CONFIG.resized(num_decoder_layers=2))


@for_each("value", [np.ones(3, int), np.ones(3, complex), "text"])
def test_what_is_no_parameter_is_not_saved(tmp_path: Path, refused: Refused, value: Any) -> None:
    with refused(ParameterError, "Parameter 'head.bias' has the dtype "):
        save_parameters(tmp_path / "parameters.safetensors", {"head.bias": value})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_not_saved_to(tmp_path: Path, refused: Refused) -> None:
    with refused(ParameterError, f"{tmp_path / 'none' / 'file'} cannot be written as a safetensors file: "):
        save_parameters(tmp_path / "none" / "file", PARAMETERS)


def test_a_tensor_that_is_named_twice_is_told(tmp_path: Path) -> None:
    path = tmp_path / "parameters.safetensors"
    path.write_bytes(TWICE)
    with pytest.raises(ParameterError, match=r"a field is repeated: head\.bias"):
        load_parameters(path, CONFIG)
