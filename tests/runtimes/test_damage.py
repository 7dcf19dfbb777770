"""Test that damaged artifacts never agree if they compute something else."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from random import Random

import pytest
from tests.runtimes.damage import ROUNDING, STEPS, damage, in_a_process, judged, right


@pytest.mark.parametrize(("kind", "inputs", "most"), [("gguf", 24, STEPS), ("folder", 6, ROUNDING)])
def test_damaged_artefacts_that_agree_compute_the_same(
    kind: str, inputs: int, most: float, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """Try some damaged artifacts, or ten times as many with `--every-case`."""
    original, checkpoint = right(kind, tmp_path)
    assert judged(original, original, checkpoint) == {"what": "agrees", "difference": 0.0}
    for index in range(inputs * (10 if pytestconfig.getoption("--every-case") else 1)):
        path = damage(kind, Random(f"1/{kind}/{index}"), original, tmp_path / f"{index}{original.suffix}")
        found = in_a_process(partial(judged, path, original, checkpoint))
        assert found["what"] in ("refused", "diverges", "inconclusive", "agrees"), (index, found)
        assert found.get("difference", 0.0) <= most, (index, found)
