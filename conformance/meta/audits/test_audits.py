"""Audit a sample of the planted faults, and test the pool itself; `nox -s power` audits all faults."""

from pathlib import Path

import pytest

from meta.audits.measure import PLANTED, RIGHT, Planted, audit_alone
from transparity_conformance.running.loading import load_port

FIELDS, TENSORS = ([each for each in PLANTED if each.kind == kind] for kind in ("field", "tensor"))
SAMPLE = (*FIELDS[::20], *TENSORS[::20])


@pytest.mark.parametrize("planted", SAMPLE, ids=str)
def test_a_planted_fault_is_found_by_its_name(planted: Planted, tmp_path: Path) -> None:
    load = load_port(f"{planted.written(tmp_path)}:load")
    assert planted.name in audit_alone(load, planted.family, tmp_path)


def test_there_are_as_many_faults_as_were_asked_for_and_each_has_its_place(tmp_path: Path) -> None:
    assert len(FIELDS) >= 40
    assert len(TENSORS) >= 40
    for planted in PLANTED:
        assert planted.family in RIGHT[planted.loader]
        compile(planted.written(tmp_path).read_text(encoding="utf-8"), planted.loader, "exec")
