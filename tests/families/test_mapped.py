"""Matrices that stay in their file are the same numbers, read block by block."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from transparity.limits import mapped
from transparity.limits.mapped import Mapped, blocks_of, have_equal_numbers

ROWS, WIDTH = 10, 6


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Mapped, np.ndarray]:
    """A matrix in bfloat16 in a file, read three rows at a time, and the same in memory, in float32."""
    monkeypatch.setattr(mapped, "BLOCK", 3 * WIDTH)
    matrix = np.random.default_rng(0).integers(-9, 9, (ROWS, WIDTH)).astype(ml_dtypes.bfloat16)  # sums are exact
    save_file({"w": matrix}, tmp_path / "model.safetensors")
    return Mapped(tmp_path / "model.safetensors", "w", (ROWS, WIDTH)), matrix.astype(np.float32)


def whole_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the matrices that are read as a whole from now on."""
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


def test_casts_are_made_in_turn(tmp_path: Path) -> None:
    dense = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
    save_file({"w": dense}, tmp_path / "model.safetensors")
    lazy = Mapped(tmp_path / "model.safetensors", "w", dense.shape)
    rounded = dense.astype(np.float16).astype(np.float64)
    assert not np.array_equal(rounded, dense)
    np.testing.assert_array_equal(lazy.astype(np.float16).astype(np.float64), rounded)
    np.testing.assert_array_equal(lazy.astype(np.float64), dense.astype(np.float64))


def test_a_matrix_in_a_file_is_sent_as_its_place(stored: tuple[Mapped, np.ndarray]) -> None:
    lazy, dense = stored
    sent = pickle.dumps(lazy)
    assert len(sent) < 1000
    np.testing.assert_array_equal(pickle.loads(sent), dense)


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
    assert not read[:-2]  # the transposed one is of another shape
    assert [block.shape for block in blocks_of(lazy)] == [(3, WIDTH)] * 3 + [(1, WIDTH)]
