"""Test that damaged artifacts never agree if they compute something else; tests/runtimes/damage.py tries more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.runtimes.damage import ROUNDING, STEPS, damage, difference, judged, right


@pytest.mark.parametrize(("kind", "inputs", "most"), [("gguf", 24, STEPS), ("folder", 6, ROUNDING)])
def test_damaged_artefacts_that_agree_compute_the_same(kind: str, inputs: int, most: float, tmp_path: Path) -> None:
    original, checkpoint = right(kind, tmp_path)
    assert judged(original, original, checkpoint) == {"what": "agrees", "difference": 0.0}
    for index in range(inputs):
        path = damage(kind, Random(f"1/{kind}/{index}"), original, tmp_path / f"{index}{original.suffix}")
        found = judged(path, original, checkpoint)
        assert found.get("difference", 0.0) <= most, (index, found)


def test_a_difference_is_seen(tmp_path: Path) -> None:
    original, checkpoint = right("gguf", tmp_path)
    data = bytearray(original.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 36] = bytes(36)  # covers a whole block of 18 bytes
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(data))
    assert difference(path, original, checkpoint) > STEPS
    assert judged(path, original, checkpoint)["what"] == "diverges"
