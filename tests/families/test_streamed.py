import copy
import dataclasses
import functools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.helpers import exported, peak_of

from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.checkpoints import importing
from transparity_conformance.checkpoints.importing import InFolder, import_checkpoint
from transparity_conformance.diagnosis.reach.coverage import affordable
from transparity_conformance.oracle.probes import probes_with
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.process.running import given_to
from transparity_conformance.storage import mapped
from transparity_conformance.storage.mapped import Mapped, blocks_of, have_equal_numbers
from transparity_conformance.storage.on_disk import OnDisk
from transparity_numpy import port

ROWS, WIDTH = 10, 6


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mapped, np.ndarray]:
    """Return a bfloat16 matrix in a file, read three rows at a time, and the same matrix in memory."""
    monkeypatch.setattr(mapped, "BLOCK", 3 * WIDTH)
    matrix = np.random.default_rng(0).integers(-9, 9, (ROWS, WIDTH)).astype(ml_dtypes.bfloat16)  # sums are exact
    save_file({"w": matrix}, tmp_path / "model.safetensors")
    return Mapped(tmp_path / "model.safetensors", "w", (ROWS, WIDTH)), matrix.astype(np.float32)


def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that receives the names of matrices that are read completely."""
    read: list[str] = []
    plain = Mapped.__array__

    def counted(self: Mapped, *given: Any, **named: Any) -> np.ndarray:
        read.append(self.name)
        return plain(self, *given, **named)

    monkeypatch.setattr(Mapped, "__array__", counted)
    return read


def test_products_rows_and_casts_read_no_matrix_as_a_whole(
    stored: tuple[Mapped, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy, dense = stored
    read, x = whole_reads(monkeypatch), np.random.default_rng(1).integers(-9, 9, (2, 4, WIDTH)).astype(float)
    tokens = np.array([[3, 0], [9, 3]])
    np.testing.assert_array_equal(x @ lazy.astype(np.float64).T, x @ dense.astype(np.float64).T)
    np.testing.assert_array_equal(lazy @ x[0].T, dense @ x[0].T)
    np.testing.assert_array_equal(lazy[tokens], dense[tokens])
    np.testing.assert_array_equal(lazy[2:5], dense[2:5])
    assert (x.astype(np.float32) @ lazy.T).dtype == np.float32
    assert lazy.astype(np.float64)[tokens].dtype == np.float64
    assert not read


def test_all_else_is_that_of_the_whole_matrix(stored: tuple[Mapped, np.ndarray]) -> None:
    lazy, dense = stored
    x = np.random.default_rng(1).integers(-9, 9, (3, ROWS)).astype(float)
    np.testing.assert_array_equal(x @ lazy, x @ dense)
    np.testing.assert_array_equal(lazy * 2 + 1, dense * 2 + 1)
    np.testing.assert_array_equal(np.roll(lazy, 1, axis=0), np.roll(dense, 1, axis=0))
    np.testing.assert_array_equal(lazy.T[1:3], dense.T[1:3])
    np.testing.assert_array_equal(lazy.reshape(5, 12), dense.reshape(5, 12))
    np.testing.assert_array_equal(lazy[:, ::2], dense[:, ::2])
    assert lazy.T.shape == dense.T.shape and lazy.size == dense.size and len(lazy) == len(dense)


def test_equal_matrices_are_compared_block_by_block(
    stored: tuple[Mapped, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy, dense = stored
    other = Path(lazy.path).with_name("other.safetensors")
    changed = dense.copy()
    changed[-1, -1] += 1
    save_file({"same": dense, "changed": changed}, other)
    read = whole_reads(monkeypatch)
    assert have_equal_numbers(lazy, Mapped(other, "same", dense.shape))
    assert not have_equal_numbers(lazy, Mapped(other, "changed", dense.shape))
    assert not have_equal_numbers(lazy, Mapped(other, "same", dense.shape).T)
    assert not read[:-2]  # the transposed matrix has another shape
    assert [block.shape for block in blocks_of(lazy)] == [(3, WIDTH)] * 3 + [(1, WIDTH)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    exported("llama", tmp_path / "hub")
    return tmp_path / "hub"


@pytest.mark.usefixtures("all_are_large")
def test_a_port_of_a_checkpoint_in_files_agrees_and_a_wrong_one_does_not(folder: Path) -> None:
    checkpoint = import_checkpoint(folder)
    given: dict[str, Any] = {"config": checkpoint.config, "parameters": checkpoint.parameters}
    assert check(port.build, "llama", **given).verdict == "agrees"

    def wrong(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Any:
        parameters["decoder.layers.1.feed_forward.up.weight"] *= 1.01
        return port.build(config, parameters)

    report = check(wrong, "llama", budget=0, **given)
    assert report.verdict == "diverges" and (report.first_divergence or "").startswith("decoder.layers.1.feed_forward")


@pytest.mark.usefixtures("all_are_large")
def test_memory_does_not_grow_with_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped, "BLOCK", 2**12)
    sizes: dict[str, Any] = {"embed_dim": 96, "feed_forward_dim": 192, "num_heads": 4, "num_key_value_heads": 2}
    peaks = []
    for layers in (2, 8):
        exported("llama", tmp_path / str(layers), num_decoder_layers=layers, **sizes)
        checkpoint = import_checkpoint(tmp_path / str(layers))
        probe = probes_with(checkpoint.config, checkpoint.parameters, "llama")["mixed"]
        oracle = dataclasses.replace(probe, kept=frozenset(["logits"])).oracle
        peaks.append(peak_of(functools.partial(oracle.budget, "logits", "float32")))
    of_a_layer = 4 * sum(value.size for name, value in checkpoint.parameters.items() if ".layers.0." in name)
    assert peaks[1] - peaks[0] < of_a_layer  # the second model has six more layers, and not even one is in memory


def test_what_is_stored_is_read_as_it_was_written_and_holds_no_memory() -> None:
    random, stored = np.random.default_rng(0), OnDisk()
    given = {
        "large": random.normal(size=(300, 700)),
        "bfloat16": random.normal(size=(301, 99)).astype(ml_dtypes.bfloat16),
        "transposed": random.normal(size=(300, 700)).T,
        "small": np.arange(3),
        "one number": np.broadcast_to(np.nan, (1000, 1000)),
        "no axes": np.array(1.5),
        "no numbers": np.zeros((0, 4)),
        **{dtype: random.normal(size=(3, 5)).astype(dtype).T for dtype in ("float32", "bool", "int64")},
    }
    stored.update(given)
    assert list(stored) == list(given)
    for name, value in given.items():
        np.testing.assert_array_equal(stored[name], value)
        assert stored[name].dtype == value.dtype
    stored["huge"] = np.broadcast_to(np.nan, (2**20, 2**20))
    assert stored["huge"].shape == (2**20, 2**20)

    def store() -> None:
        for number in range(100):
            stored[f"{number}"] = np.zeros((100, 1000))
        assert sum(stored[f"{number}"].size for number in range(100)) == 10**7

    assert peak_of(store) < 10**7  # the arrays have 8 · 10⁷ bytes


@pytest.mark.usefixtures("all_are_large")
def test_a_model_that_is_called_once_has_a_narrow_one_for_its_coverage(folder: Path) -> None:
    checkpoint = import_checkpoint(folder)
    once = probes_with(checkpoint.config, checkpoint.parameters, "llama")["mixed"]
    (narrow,) = affordable(checkpoint.config, [once])
    assert narrow.inputs["tokens"].shape == once.inputs["tokens"].shape


def test_a_loader_is_given_a_copy_or_the_folder_itself_where_no_copy_fits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parameters = import_checkpoint(folder).parameters
    loader = HubBuild(lambda path: path, "llama", str(tmp_path))
    assert isinstance(parameters, InFolder) and isinstance(given_to(loader, parameters), dict)
    monkeypatch.setattr(importing, "available_memory", lambda: 0)
    parameters = import_checkpoint(folder).parameters  # importing chooses: memory or folder
    assert given_to(loader, parameters) == str(folder)
    assert isinstance(given_to(loader, parameters | {}), dict)  # changed parameters differ from the folder
    assert isinstance(given_to(port.build, parameters), dict)


def test_a_report_says_that_a_loader_was_given_the_folder_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(path: str) -> Any:
        checkpoint = import_checkpoint(path)
        forward = port.build(checkpoint.config, checkpoint.parameters)
        return lambda input_ids: forward(tokens=np.asarray(input_ids))

    def checked() -> tuple[str, ...]:
        checkpoint = import_checkpoint(folder)
        report = check(load, family="llama", config=checkpoint.config, parameters=checkpoint.parameters, audit=False)
        assert report.verdict == "agrees"
        return report.notes

    assert any("a float32 copy in one file, and once with the folder itself" in note for note in checked())
    monkeypatch.setattr(importing, "available_memory", lambda: 0)
    assert any(note.startswith(f"load(folder) was given {folder} itself") for note in checked())


def test_a_copy_has_what_was_there_and_neither_sees_what_the_other_adds() -> None:
    arrays = OnDisk()
    arrays["both"] = np.arange(3.0)
    other = copy.copy(arrays)
    arrays["one"], other["other"], other["both"] = np.zeros(2), np.ones(2), np.ones(2)
    assert (sorted(arrays), sorted(other)) == (["both", "one"], ["both", "other"])
    np.testing.assert_array_equal(arrays["both"], np.arange(3.0))
    del arrays
    np.testing.assert_array_equal(other["both"], np.ones(2))
