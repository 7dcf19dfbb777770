import json
import math
import os
import pickle
import resource
import shutil
import socket
import struct
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.helpers import refused
from tests.looping import for_each

from transparity import initialize_parameters, load_parameters, preset, save_parameters
from transparity.errors import ParameterError, TransparityError
from transparity.limits.memory import available_memory
from transparity.text import SENTENCE
from transparity_conformance.checking.systems import named_config
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.exchange.bundle import Bundle, bundle_probes
from transparity_conformance.exchange.manifest import FILES
from transparity_conformance.exchange.reading import read_actual, read_bundle, read_config
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.report.files import OutputError, check_writable
from transparity_conformance.running.loading import load_port

TERABYTES = 8 << 40

LARGE: dict[str, Any] = {"seconds": 5.0, "megabytes": 300, "clock": time.process_time}
"""Limits of time and memory for large files."""

GPT2 = {"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 1}

CONFIG = preset("notes-lm").resized(num_decoder_layers=1)
PARAMETERS = initialize_parameters(CONFIG)


def refusal_at_once(
    read: Callable[[], object],
    error: type[TransparityError] = TransparityError,
    *,
    seconds: float = 2.0,
    megabytes: float = 50,
    clock: Callable[[], float] = time.perf_counter,
) -> str:
    """Return the message of the error that `read` raises. Assert that the message is one sentence, and that time and
    memory are within the limits."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = clock()
    with pytest.raises(error) as caught:
        read()
    assert clock() - began < seconds
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < megabytes
    message = str(caught.value)
    assert message.isprintable() and message.endswith(".") and len(message) <= SENTENCE
    return message


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTES)


def listening(path: Path) -> None:
    """Create a socket in the current folder, because a socket's path must be short."""
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


MAKERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "sparse": sparse,
    "folder": Path.mkdir,
    "loop": lambda path: path.symlink_to(path),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),  # not even the superuser can read this
    "socket": listening,
    "nothing": lambda path: None,
}

NAMES = {"long": "x" * 300, "null": "a\0b", "surrogate": "\udcff", "below a file": "file/x", "deep": "d/" * 3000}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Bundle]:
    config = preset("notes-lm").resized(num_decoder_layers=1)
    probes = {name: probe for name, probe in bundle_probes("config", config).items() if name == "one"}
    folder = tmp_path_factory.mktemp("bundles") / "bundle"
    return folder, export_bundle(config, folder, probes)


READERS: dict[str, Callable[[Path], object]] = {
    "parameters": load_parameters,
    "a configuration": read_config,
    "a named configuration": lambda path: named_config(f"{path}.json", resized=True),
    "a preset": lambda path: named_config(str(path), resized=True),
    "a bundle": read_bundle,
    "a checkpoint": import_checkpoint,
    "a port": lambda path: load_port(f"{path}.py:build"),
}


@for_each(("read", "name"), product([*READERS, "outputs"], NAMES))
def test_a_name_that_no_file_has(tmp_path: Path, written: tuple[Path, Bundle], read: str, name: str) -> None:
    (tmp_path / "file").touch()
    readers = READERS | {"outputs": lambda path: read_actual(path, written[1])}
    refusal_at_once(lambda: readers[read](tmp_path / NAMES[name]))


@for_each(("read", "make"), product(READERS, MAKERS))
def test_something_else_where_a_file_is_read(tmp_path: Path, read: str, make: str) -> None:
    for ending in ("", ".json", ".py"):
        MAKERS[make](tmp_path / f"it{ending}")
    refusal_at_once(lambda: READERS[read](tmp_path / "it"))


@for_each(("name", "make"), product(["actual.safetensors", "manifest.json", *FILES], MAKERS))
def test_something_else_in_a_bundle_or_for_its_outputs(
    tmp_path: Path, written: tuple[Path, Bundle], make: str, name: str
) -> None:
    copy = Path(shutil.copytree(written[0], tmp_path / "copy"))
    (copy / name).unlink(missing_ok=True)
    MAKERS[make](copy / name)
    is_output = name == "actual.safetensors"
    refusal_at_once(lambda: read_actual(copy / name, written[1]) if is_output else read_bundle(copy))


INDEX = json.dumps({"weight_map": {"wte.weight": "part.safetensors"}})

CHECKPOINTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("config.json", {}),
    ("model.safetensors", {"config.json": json.dumps(GPT2)}),
    ("other.safetensors", {"config.json": json.dumps(GPT2)}),
    ("model.safetensors.index.json", {"config.json": json.dumps(GPT2)}),
    ("part.safetensors", {"config.json": json.dumps(GPT2), "model.safetensors.index.json": INDEX}),
)
"""A file of a checkpoint, and the other files that the checkpoint needs."""


@for_each(("name", "others", "make"), [(*each, make) for each, make in product(CHECKPOINTS, MAKERS)])
def test_something_else_in_a_checkpoint(tmp_path: Path, make: str, name: str, others: dict[str, str]) -> None:
    for other, text in others.items():
        (tmp_path / other).write_text(text)
    MAKERS[make](tmp_path / name)
    refusal_at_once(lambda: import_checkpoint(tmp_path))


@for_each("part", ["/etc/passwd", "../part", "..", ".", "", "x" * 300, "a\0b", "\ud800", "a/b"])
def test_an_index_names_files_beside_it_alone(tmp_path: Path, part: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": part}}))
    refusal_at_once(lambda: import_checkpoint(tmp_path))


@for_each("name", ["pipe", "folder", "loop", "socket", *sorted({*NAMES} - {"surrogate"})])
def test_a_report_is_not_written_to_something_else_or_under_an_impossible_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    if name in MAKERS:
        MAKERS[name](tmp_path / "it")
    refusal_at_once(lambda: check_writable(tmp_path / NAMES.get(name, "it")))


def test_a_report_may_be_written_to_a_device_and_to_a_pipe_that_is_read(tmp_path: Path) -> None:
    check_writable(Path("/dev/null"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError):
        check_writable(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    os.close(reader)


def checkpoint(folder: Path, fields: dict[str, Any] | str, **tensors: np.ndarray) -> Path:
    text = fields if isinstance(fields, str) else json.dumps(fields)
    (folder / "config.json").write_text(text)
    save_file(tensors or {"one": np.zeros(1, np.float32)}, folder / "model.safetensors")
    return folder


def header(fields: dict[str, Any] | bytes, data: bytes = b"") -> bytes:
    text = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: Any, begin: int = 0, end: int = 8, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ENTRY = b'"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}'
EMPTY = b'"h.%d.ln_1.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}'

LIES: dict[str, bytes] = {
    "empty": b"",
    "a pickle": pickle.dumps({"head.bias": 1.0}),
    "a list": header(b"[]"),
    "deep objects": header(b'{"a":' * 200_000),
    "a large number": header(b"9" * 10_000),
    "cut": header({"a": entry([2])}, bytes(7)),
    "twice": header(b"{" + ENTRY + b", " + ENTRY + b"}", bytes(4)),
    "beyond the file": header({"a": entry([2], 8, 16)}, bytes(8)),
    "a huge offset": header({"a": entry([2], 0, 2**70)}, bytes(8)),
    "a larger header": struct.pack("<Q", 2**22) + bytes(2**22),
    "overlapping": header({"a": entry([2]), "b": entry([2], 4, 12)}, bytes(12)),
    "a gap": header({"a": entry([2]), "b": entry([2], 12, 20)}, bytes(20)),
    "endless header": struct.pack("<Q", 2**62) + b"{}",
    "large header": struct.pack("<Q", 2**25) + bytes(2**25),
    "negative size": header({"a": entry([-2])}, bytes(8)),
    "overflow": header({"a": entry([2**63, 2**63])}, bytes(8)),
    "empty and huge": header({"wte.weight": entry([0, 2**62], 0, 0)}),
    "many axes": header({"wte.weight": entry([1] * 100 + [2])}, bytes(8)),
    "a million axes": header({"wte.weight": entry([1] * 10**6 + [2])}, bytes(8)),
    "a number for a dtype": header({"a": entry([2], dtype=3)}, bytes(8)),
    "deep": header(b"[" * 10**5),
    "a deep remark": header(b'{"__metadata__":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"}"),
    "a million tensors": header(b"{" + b", ".join(EMPTY % number for number in range(300_000)) + b"}"),
}

DOORS: dict[str, Callable[[Path, Bundle], object]] = {
    "parameters": lambda path, bundle: load_parameters(path),
    "a checkpoint": lambda path, bundle: import_checkpoint(path.parent),
    "outputs": read_actual,
}


@for_each(("door", "lie"), list(product(DOORS, LIES)))
def test_a_file_that_is_not_safetensors(tmp_path: Path, written: tuple[Path, Bundle], door: str, lie: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    path = tmp_path / "model.safetensors"
    path.write_bytes(LIES[lie])
    refusal_at_once(lambda: DOORS[door](path, written[1]), **LARGE)


def test_parameters_of_another_configuration_or_without_a_path_are_refused(tmp_path: Path) -> None:
    save_parameters(tmp_path / "file", PARAMETERS)
    with refused(ParameterError, "Parameter 'decoder.layers.1.self_attention.query.weight' is missing; it should"):
        load_parameters(tmp_path / "file", CONFIG.resized(num_decoder_layers=2))
    with refused(ParameterError, "None cannot be read: "):
        load_parameters(None)  # type: ignore[arg-type]
    with refused(ParameterError, f"{tmp_path / 'none' / 'file'} cannot be written as a safetensors file: "):
        save_parameters(tmp_path / "none" / "file", PARAMETERS)


@for_each("value", [np.ones(3, int), np.ones(3, complex), "text"])
def test_what_is_no_parameter_is_not_saved(tmp_path: Path, value: Any) -> None:
    with refused(ParameterError, "Parameter 'head.bias' has the dtype "):
        save_parameters(tmp_path / "parameters.safetensors", {"head.bias": value})
    assert list(tmp_path.iterdir()) == []


@for_each("name", ["n" * 10**7, "h." + "1" * 10**6 + ".ln_1.weight", "\x1b[2J\u202e", "", "\0"])
def test_a_tensor_of_any_name(tmp_path: Path, name: str) -> None:
    checkpoint(tmp_path, GPT2, **{name: np.zeros(2, np.float32)})
    refusal_at_once(lambda: load_parameters(tmp_path / "model.safetensors", CONFIG), **LARGE)
    refusal_at_once(lambda: import_checkpoint(tmp_path), **LARGE)


def test_data_that_no_machine_has_memory_for(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(header({"wte.weight": entry([TERABYTES // 4], 0, TERABYTES)}))
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + TERABYTES)
    assert "8.8 TB" in refusal_at_once(lambda: load_parameters(path))
    assert math.isfinite(available_memory())
