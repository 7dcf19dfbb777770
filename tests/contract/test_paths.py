"""A path that cannot be read or written raises an error of one sentence, without a hang or high memory use."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from tests.looping import for_each

from transparity import load_parameters, preset
from transparity.errors import TransparityError
from transparity.text import SENTENCE
from transparity_conformance.checking.systems import named_config
from transparity_conformance.checkpoints.importing import import_checkpoint
from transparity_conformance.exchange.bundle import Bundle, bundle_probes
from transparity_conformance.exchange.manifest import FILES
from transparity_conformance.exchange.reading import read_actual, read_bundle, read_config
from transparity_conformance.exchange.writing import export_bundle
from transparity_conformance.report.files import OutputError, check_writable
from transparity_conformance.running.loading import load_port

SECONDS, MEGABYTES = 2.0, 50

TERABYTES = 8 << 40

GPT2 = json.dumps({"model_type": "gpt2", "vocab_size": 11, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 1})

INDEX = json.dumps({"weight_map": {"wte.weight": "part.safetensors"}})


def pipe(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(TERABYTES)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unreadable(path: Path) -> None:
    """Create a path that even the superuser cannot read."""
    path.symlink_to("/proc/self/mem")


def listening(path: Path) -> None:
    """Create a socket; its path must be short."""
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(before)


def nothing(path: Path) -> None:
    """Create no file."""


MAKERS = (pipe, sparse, folder, loop, endless, unreadable, listening, nothing)

NAMES = {"long": "x" * 300, "null": "a\0b", "surrogate": "\udcff", "below a file": "file/x", "deep": "d/" * 3000}


def refusal_at_once(read: Callable[[], object]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    with pytest.raises(TransparityError) as caught:
        read()
    assert time.perf_counter() - began < SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEGABYTES
    message = str(caught.value)
    assert message.isprintable()
    assert message.endswith(".")
    assert len(message) <= SENTENCE


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


@for_each(("read", "name"), product(READERS, NAMES))
def test_a_name_that_no_file_has(tmp_path: Path, read: str, name: str) -> None:
    (tmp_path / "file").touch()
    refusal_at_once(lambda: READERS[read](tmp_path / NAMES[name]))


@for_each("name", NAMES.values())
def test_outputs_under_a_name_that_no_file_has(tmp_path: Path, written: tuple[Path, Bundle], name: str) -> None:
    refusal_at_once(lambda: read_actual(tmp_path / name, written[1]))


@for_each(("read", "make"), product(READERS, MAKERS))
def test_something_else_where_a_file_is_read(tmp_path: Path, read: str, make: Callable[[Path], None]) -> None:
    for ending in ("", ".json", ".py"):
        make(tmp_path / f"it{ending}")
    refusal_at_once(lambda: READERS[read](tmp_path / "it"))


@for_each(("name", "make"), product(["actual.safetensors", "manifest.json", *FILES], MAKERS))
def test_something_else_in_a_bundle_or_for_its_outputs(
    tmp_path: Path, written: tuple[Path, Bundle], make: Callable[[Path], None], name: str
) -> None:
    copy = Path(shutil.copytree(written[0], tmp_path / "copy"))
    (copy / name).unlink(missing_ok=True)
    make(copy / name)
    is_output = name == "actual.safetensors"
    refusal_at_once(lambda: read_actual(copy / name, written[1]) if is_output else read_bundle(copy))


CHECKPOINTS: tuple[tuple[str, dict[str, str]], ...] = (
    ("config.json", {}),
    ("model.safetensors", {"config.json": GPT2}),
    ("other.safetensors", {"config.json": GPT2}),
    ("model.safetensors.index.json", {"config.json": GPT2}),
    ("part.safetensors", {"config.json": GPT2, "model.safetensors.index.json": INDEX}),
)
"""A file of a checkpoint, and the other files that it needs."""


@for_each(("name", "others", "make"), [(*each, make) for each, make in product(CHECKPOINTS, MAKERS)])
def test_something_else_in_a_checkpoint(
    tmp_path: Path, make: Callable[[Path], None], name: str, others: dict[str, str]
) -> None:
    for other, text in others.items():
        (tmp_path / other).write_text(text)
    make(tmp_path / name)
    refusal_at_once(lambda: import_checkpoint(tmp_path))


@for_each("part", ["/etc/passwd", "../part", "..", ".", "", "x" * 300, "a\0b", "\ud800", "a/b"])
def test_an_index_names_files_beside_it_alone(tmp_path: Path, part: str) -> None:
    (tmp_path / "config.json").write_text(GPT2)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"wte.weight": part}}))
    refusal_at_once(lambda: import_checkpoint(tmp_path))


@for_each("make", [pipe, folder, loop, listening])
def test_a_report_is_not_written_to_something_else(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "it")
    refusal_at_once(lambda: check_writable(tmp_path / "it"))


@for_each("name", sorted({*NAMES} - {"surrogate"}))
def test_a_report_is_not_written_under_an_impossible_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    refusal_at_once(lambda: check_writable(tmp_path / NAMES[name]))


def test_a_report_may_be_written_to_a_device_and_to_a_pipe_that_is_read(tmp_path: Path) -> None:
    check_writable(Path("/dev/null"), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OutputError):
        check_writable(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    os.close(reader)
